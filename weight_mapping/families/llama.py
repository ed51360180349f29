"""Llama 1 to 3.x, and what came with their config: SmolLM2 for one. Touvron et al. 2023, Dubey et al. 2024."""

from reference_impl.ffn import ACTIVATIONS
from reference_impl.models.llama import LlamaConfig, LlamaModel
from weight_mapping import gguf_decoder, hf_decoder
from weight_mapping.family import COUNT, FLAG, Check, Family, Key, Layout
from weight_mapping.hf_decoder import HERE, THERE
from weight_mapping.rules import PairsToHalves, Table
from weight_mapping.window import LAYERS_ALIKE


def hf(config: LlamaConfig) -> Table:
    """The names of the hub: model.safetensors as transformers writes it."""
    return Table(
        index={"layer": range(config.n_layers), "part": ("weight", "bias")},
        rules=(
            *hf_decoder.trunk(config.tied_head),
            *hf_decoder.grouped_attention(),
            *hf_decoder.gated(HERE + "mlp", THERE + "ffn"),
        ),
        drops=(hf_decoder.OLD_BUFFERS,),
    )


def gguf(config: LlamaConfig) -> Table:
    """GGUF's names. Its q and k rows are in the paper's order, the components that turn together side by side."""
    q, k = PairsToHalves(config.n_heads), PairsToHalves(config.n_kv_heads)
    return Table(
        index={"layer": range(config.n_layers), "part": ("weight", "bias")},
        rules=gguf_decoder.rules(q=(q,), k=(k,)),
        drops=(gguf_decoder.SCALED_FREQUENCIES,),
    )


_DEFAULTS = {
    "n_kv_heads": lambda f: f["n_heads"],
    "d_head": lambda f: f["d_model"] // f["n_heads"] if f["d_model"] % f["n_heads"] == 0 else None,
    "activation": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "tied_head": False,
    "rope.theta": 10000.0,
    "rope.type": "default",
    "rope.pairing": "halves",
}

FAMILY = Family(
    architecture="LlamaForCausalLM",
    config=LlamaConfig,
    model=LlamaModel,
    rope_width="d_head",
    checks=(
        Check("{n_heads} is no multiple of {n_kv_heads}", lambda f: f["n_heads"] % f["n_kv_heads"] == 0),
        Check("{d_model} is no multiple of {n_heads}; give the width of a head", lambda f: f["d_head"] is not None),
        Check("{d_head} is odd, and RoPE turns pairs", lambda f: f["d_head"] % 2 == 0),
        Check(f"{{activation}} is not one of {', '.join(ACTIVATIONS)}", lambda f: f["activation"] in ACTIVATIONS),
    ),
    layouts={
        "hf": Layout(
            names=("llama",),
            keys={
                **hf_decoder.KEYS,
                "num_key_value_heads": Key("n_kv_heads", COUNT),
                "head_dim": Key("d_head", COUNT),
                "mlp_bias": Key("mlp_bias", FLAG),
            },
            only={
                "pretraining_tp": (1,),  # more computes each projection in slices, which rounds otherwise
                "rope_interleaved": (False,),
                "sliding_window": (None,),
                "use_sliding_window": (None, False),
            },
            harmless=("is_llama_config",),
            defaults={
                "vocab_size": 32000,
                "d_model": 4096,
                "d_ff": 11008,
                "n_layers": 32,
                "n_heads": 32,
                "max_positions": 2048,
                "norm_eps": 1e-6,
                **_DEFAULTS,
            },
            agrees=LAYERS_ALIKE,
        ),
        "gguf": Layout(
            names=("llama",),
            keys=gguf_decoder.keys("llama") | gguf_decoder.DIVISORS_KEY,
            only=gguf_decoder.only("llama"),
            harmless=("llama.tensor_data_layout", "llama.rope.scaling.finetuned"),
            defaults={**_DEFAULTS, "rope.type": lambda f: "divided" if "rope.divisors" in f else "default"},
            tensor_keys={gguf_decoder.DIVISORS: gguf_decoder.divisors},
            tensors_say={
                **gguf_decoder.TENSORS_SAY,
                "attention_bias": lambda c: "blk.0.attn_q.bias" in c,
                "mlp_bias": lambda c: "blk.0.ffn_up.bias" in c,
            },
        ),
    },
    tables={"hf": hf, "gguf": gguf, "transformers5": hf},
    trunk="model.",
)
