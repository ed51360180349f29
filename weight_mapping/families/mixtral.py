"""Mixtral 8x7B and 8x22B. Jiang et al. 2024."""

from reference_impl.ffn import ACTIVATIONS
from reference_impl.models.mixtral import MixtralConfig, MixtralModel
from weight_mapping import hf_decoder, hf_experts
from weight_mapping.family import AMOUNT, COUNT, COUNT_OR_NULL, Check, Family, Key, Layout, given
from weight_mapping.hf_decoder import HERE, THERE
from weight_mapping.rules import Rule, Table, rename
from weight_mapping.window import LAYERS_ALIKE


def hf(config: MixtralConfig) -> Table:
    """The names of the hub, one tensor an expert and matrix; transformers 4 has the same in memory."""
    one = HERE + "block_sparse_moe.experts.{expert}"
    return _table(
        config,
        rename(HERE + "block_sparse_moe.gate.weight", THERE + "ffn.router.weight"),
        *hf_experts.apart(one, THERE + "ffn.experts", config.d_ff, names=("w1", "w3", "w2")),
    )


def transformers5(config: MixtralConfig) -> Table:
    """What transformers 5 has in memory: a layer's experts in two tensors, (x, 2f, d) and (x, d, f)."""
    return _table(
        config,
        rename(HERE + "mlp.gate.weight", THERE + "ffn.router.weight"),
        *hf_experts.together(HERE + "mlp.experts", THERE + "ffn.experts"),
    )


def _table(config: MixtralConfig, *mixture: Rule) -> Table:
    return Table(
        index={"layer": range(config.n_layers), "expert": range(config.n_experts), "part": ("weight",)},
        rules=(*hf_decoder.trunk(config.tied_head), *hf_decoder.grouped_attention(), *mixture),
        drops=(hf_decoder.OLD_BUFFERS,),
    )


FAMILY = Family(
    architecture="MixtralForCausalLM",
    config=MixtralConfig,
    model=MixtralModel,
    rope_width="d_head",
    checks=(
        Check("{n_heads} is no multiple of {n_kv_heads}", lambda f: f["n_heads"] % f["n_kv_heads"] == 0),
        Check("{d_model} is no multiple of {n_heads}; give the width of a head", lambda f: f["d_head"] is not None),
        Check("{d_head} is odd, and RoPE turns pairs", lambda f: f["d_head"] % 2 == 0),
        Check(f"{{activation}} is not one of {', '.join(ACTIVATIONS)}", lambda f: f["activation"] in ACTIVATIONS),
        Check("{top_k} is more than {n_experts}", lambda f: f["top_k"] <= f["n_experts"]),
        Check("{router_jitter} is more than 1, and would turn inputs round", lambda f: f["router_jitter"] <= 1),
    ),
    layouts={
        "hf": Layout(
            names=("mixtral",),
            keys={
                **hf_decoder.UNBIASED_KEYS,
                "num_key_value_heads": Key("n_kv_heads", given(COUNT)),  # null has been read as all heads, absence as 8
                "head_dim": Key("d_head", COUNT),
                "sliding_window": Key("window", COUNT_OR_NULL),
                "num_local_experts": Key("n_experts", COUNT),
                "num_experts": Key("n_experts", COUNT),  # what transformers 5 calls it as well
                "num_experts_per_tok": Key("top_k", COUNT),
                "router_jitter_noise": Key("router_jitter", AMOUNT),
                "router_aux_loss_coef": Key("aux_loss_coef", AMOUNT),
            },
            only={"attention_bias": (False,)},
            harmless=("output_router_logits",),
            defaults={
                "vocab_size": 32000,
                "d_model": 4096,
                "d_ff": 14336,
                "n_layers": 32,
                "n_heads": 32,
                "n_kv_heads": 8,
                "d_head": lambda f: f["d_model"] // f["n_heads"] if f["d_model"] % f["n_heads"] == 0 else None,
                "n_experts": 8,
                "top_k": 2,
                "max_positions": 131072,
                "norm_eps": 1e-5,
                "window": None,
                "activation": "silu",
                "attention_dropout": 0.0,
                "router_jitter": 0.0,
                "aux_loss_coef": 0.001,
                "tied_head": False,
                "rope.theta": 1e6,
                "rope.type": "default",
                "rope.pairing": "halves",
            },
            agrees=LAYERS_ALIKE,
        ),
    },
    tables={"hf": hf, "transformers5": transformers5},
    trunk="model.",
)
