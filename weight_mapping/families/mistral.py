"""Mistral 7B to Nemo. Jiang et al. 2023. GGUF has no name of its own for them: there they are Llamas."""

from reference_impl.ffn import ACTIVATIONS
from reference_impl.models.mistral import MistralConfig, MistralModel
from weight_mapping import hf_decoder
from weight_mapping.family import COUNT, COUNT_OR_NULL, Check, Family, Key, Layout
from weight_mapping.hf_decoder import HERE, THERE
from weight_mapping.rules import Table
from weight_mapping.window import LAYERS_ALIKE


def hf(config: MistralConfig) -> Table:
    """The names of the hub."""
    return Table(
        index={"layer": range(config.n_layers), "part": ("weight",)},
        rules=(
            *hf_decoder.trunk(config.tied_head),
            *hf_decoder.grouped_attention(),
            *hf_decoder.gated(HERE + "mlp", THERE + "ffn"),
        ),
        drops=(hf_decoder.OLD_BUFFERS,),
    )


FAMILY = Family(
    architecture="MistralForCausalLM",
    config=MistralConfig,
    model=MistralModel,
    rope_width="d_head",
    checks=(
        Check("{n_heads} is no multiple of {n_kv_heads}", lambda f: f["n_heads"] % f["n_kv_heads"] == 0),
        Check("{d_model} is no multiple of {n_heads}; give the width of a head", lambda f: f["d_head"] is not None),
        Check("{d_head} is odd, and RoPE turns pairs", lambda f: f["d_head"] % 2 == 0),
        Check(f"{{activation}} is not one of {', '.join(ACTIVATIONS)}", lambda f: f["activation"] in ACTIVATIONS),
    ),
    layouts={
        "hf": Layout(
            names=("mistral",),
            keys={
                **hf_decoder.UNBIASED_KEYS,
                "num_key_value_heads": Key("n_kv_heads", COUNT),
                "head_dim": Key("d_head", COUNT),
                "sliding_window": Key("window", COUNT_OR_NULL),
            },
            only={
                "attention_bias": (False,),
                "mlp_bias": (False,),
            },
            harmless=(),
            defaults={
                "vocab_size": 32000,
                "d_model": 4096,
                "d_ff": 14336,
                "n_layers": 32,
                "n_heads": 32,
                "n_kv_heads": 8,
                "d_head": lambda f: f["d_model"] // f["n_heads"] if f["d_model"] % f["n_heads"] == 0 else None,
                "max_positions": 131072,
                "norm_eps": 1e-6,
                "window": 4096,
                "attention_dropout": 0.0,
                "activation": "silu",
                "tied_head": False,
                "rope.theta": 10000.0,
                "rope.type": "default",
                "rope.pairing": "halves",
            },
            agrees=LAYERS_ALIKE,
        ),
    },
    tables={"hf": hf, "transformers5": hf},
    trunk="model.",
)
