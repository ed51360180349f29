"""Qwen2, Qwen2.5 and Qwen2.5-Coder. Yang et al. 2024."""

from reference_impl.ffn import ACTIVATIONS
from reference_impl.models.qwen2 import Qwen2Config, Qwen2Model
from weight_mapping import gguf_decoder, hf_decoder
from weight_mapping.family import COUNT, Check, Family, Key, Layout
from weight_mapping.hf_decoder import HERE, THERE
from weight_mapping.rules import Table
from weight_mapping.window import HF_WINDOW_DEFAULTS, HF_WINDOW_IMPLIED, HF_WINDOW_KEYS, NO_WINDOWS, WINDOW_CHECK


def hf(config: Qwen2Config) -> Table:
    """The names of the hub."""
    return Table(
        index={"layer": range(config.n_layers), "part": ("weight", "bias")},
        rules=(
            *hf_decoder.trunk(config.tied_head),
            *hf_decoder.grouped_attention(),
            *hf_decoder.gated(HERE + "mlp", THERE + "ffn"),
        ),
        drops=(hf_decoder.OLD_BUFFERS,),
    )


def gguf(config: Qwen2Config) -> Table:
    """GGUF's names. The rows of q and k are in the hub's order, unlike a Llama's."""
    return Table(
        index={"layer": range(config.n_layers), "part": ("weight", "bias")},
        rules=gguf_decoder.rules(),
        drops=(gguf_decoder.SCALED_FREQUENCIES,),
    )


_DEFAULTS = {
    "d_head": lambda f: f["d_model"] // f["n_heads"] if f["d_model"] % f["n_heads"] == 0 else None,
    "attention_dropout": 0.0,
    "activation": "silu",
    "tied_head": False,
    "rope.theta": 10000.0,
    "rope.type": "default",
    "rope.pairing": "halves",
}

FAMILY = Family(
    architecture="Qwen2ForCausalLM",
    config=Qwen2Config,
    model=Qwen2Model,
    rope_width="d_head",
    checks=(
        Check("{n_heads} is no multiple of {n_kv_heads}", lambda f: f["n_heads"] % f["n_kv_heads"] == 0),
        Check("{d_model} is no multiple of {n_heads}; give the width of a head", lambda f: f["d_head"] is not None),
        Check("{d_head} is odd, and RoPE turns pairs", lambda f: f["d_head"] % 2 == 0),
        Check(f"{{activation}} is not one of {', '.join(ACTIVATIONS)}", lambda f: f["activation"] in ACTIVATIONS),
        WINDOW_CHECK,
    ),
    layouts={
        "hf": Layout(
            names=("qwen2",),
            keys={
                **hf_decoder.UNBIASED_KEYS,
                "num_key_value_heads": Key("n_kv_heads", COUNT),
                "head_dim": Key("d_head", COUNT),
                **HF_WINDOW_KEYS,
            },
            only={
                "attention_bias": (True,),
                "mlp_bias": (False,),
                "use_mrope": (False,),
            },
            harmless=(),
            defaults={
                "vocab_size": 151936,
                "d_model": 4096,
                "d_ff": 22016,
                "n_layers": 32,
                "n_heads": 32,
                "n_kv_heads": 32,
                "max_positions": 32768,
                "norm_eps": 1e-6,
                **_DEFAULTS,
                **HF_WINDOW_DEFAULTS,
            },
            implied=HF_WINDOW_IMPLIED,
        ),
        "gguf": Layout(
            names=("qwen2",),
            keys=gguf_decoder.keys("qwen2"),
            only=gguf_decoder.only("qwen2"),
            harmless=("qwen2.rope.scaling.finetuned",),
            defaults={
                "n_kv_heads": lambda f: f["n_heads"],
                **_DEFAULTS,
                **NO_WINDOWS,
            },
            tensors_say=gguf_decoder.TENSORS_SAY,
        ),
    },
    tables={"hf": hf, "gguf": gguf, "transformers5": hf},
    trunk="model.",
)
