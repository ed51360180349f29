"""Qwen1.5-MoE and Qwen2-57B-A14B. Yang et al. 2024."""

from dataclasses import replace

from reference_impl.ffn import ACTIVATIONS
from reference_impl.models.qwen2_moe import Qwen2MoeConfig, Qwen2MoeModel
from weight_mapping import hf_decoder, hf_experts
from weight_mapping.family import AMOUNT, COUNT, FLAG, WHOLE, Check, Family, Key, Layout, given
from weight_mapping.hf_decoder import HERE, THERE
from weight_mapping.rules import Rule, Table, rename
from weight_mapping.window import HF_WINDOW_DEFAULTS, HF_WINDOW_IMPLIED, HF_WINDOW_KEYS, WINDOW_CHECK


def hf(config: Qwen2MoeConfig) -> Table:
    """The names of the hub, one tensor an expert and matrix; transformers 4 has the same in memory."""
    return _table(config, hf_experts.apart(HERE + "mlp.experts.{expert}", THERE + "ffn.experts", config.d_ff_expert))


def transformers5(config: Qwen2MoeConfig) -> Table:
    """What transformers 5 has in memory: a layer's experts in two tensors, (x, 2f, d) and (x, d, f)."""
    return _table(config, hf_experts.together(HERE + "mlp.experts", THERE + "ffn.experts"))


def _table(config: Qwen2MoeConfig, experts: tuple[Rule, ...]) -> Table:
    return Table(
        index={"layer": range(config.n_layers), "expert": range(config.n_experts), "part": ("weight", "bias")},
        rules=(
            *hf_decoder.trunk(config.tied_head),
            *hf_decoder.grouped_attention(),
            *hf_decoder.gated(HERE + "mlp", THERE + "ffn"),
            rename(HERE + "mlp.gate.weight", THERE + "ffn.router.weight"),
            *hf_decoder.gated(HERE + "mlp.shared_expert", THERE + "ffn.shared"),
            rename(HERE + "mlp.shared_expert_gate.weight", THERE + "ffn.shared_gate.weight"),
            *experts,
        ),
        drops=(hf_decoder.OLD_BUFFERS,),
    )


_SIZE = replace(WHOLE, says="a whole number of 0 or more, or null", absent=(), null=True)
"""Of a window, where transformers 5 writes 0 for none."""

FAMILY = Family(
    architecture="Qwen2MoeForCausalLM",
    config=Qwen2MoeConfig,
    model=Qwen2MoeModel,
    rope_width="d_head",
    checks=(
        Check("{n_heads} is no multiple of {n_kv_heads}", lambda f: f["n_heads"] % f["n_kv_heads"] == 0),
        Check("{d_model} is no multiple of {n_heads}; give the width of a head", lambda f: f["d_head"] is not None),
        Check("{d_head} is odd, and RoPE turns pairs", lambda f: f["d_head"] % 2 == 0),
        Check(f"{{activation}} is not one of {', '.join(ACTIVATIONS)}", lambda f: f["activation"] in ACTIVATIONS),
        Check("{top_k} is more than {n_experts}", lambda f: f["top_k"] <= f["n_experts"]),
        WINDOW_CHECK,
        Check("with use_sliding_window, sliding_window is 0, and a query sees nothing", lambda f: f["window"] != 0),
    ),
    layouts={
        "hf": Layout(
            names=("qwen2_moe",),
            keys={
                **hf_decoder.UNBIASED_KEYS,
                "qkv_bias": Key("qkv_bias", FLAG),
                "num_key_value_heads": Key("n_kv_heads", given(COUNT)),
                "head_dim": Key("d_head", COUNT),
                "moe_intermediate_size": Key("d_ff_expert", COUNT),
                "shared_expert_intermediate_size": Key("d_ff_shared", COUNT),
                "num_experts": Key("n_experts", COUNT),
                "num_local_experts": Key("n_experts", COUNT),  # what transformers 5 calls it as well
                "num_experts_per_tok": Key("top_k", COUNT),
                **hf_experts.SPARSE_LAYER_KEYS,
                "norm_topk_prob": Key("normalised", given(FLAG)),
                "router_aux_loss_coef": Key("aux_loss_coef", AMOUNT),
                **HF_WINDOW_KEYS,
                "sliding_window": Key("window.size", _SIZE),
            },
            only={"mlp_bias": (False,), "use_mrope": (False,)},
            harmless=("output_router_logits",),
            defaults={
                "vocab_size": 151936,
                "d_model": 2048,
                "d_ff": 5632,
                "n_layers": 24,
                "n_heads": 16,
                "n_kv_heads": 16,
                "d_head": lambda f: f["d_model"] // f["n_heads"] if f["d_model"] % f["n_heads"] == 0 else None,
                "d_ff_expert": 1408,
                "d_ff_shared": 5632,
                "n_experts": 60,
                "top_k": 4,
                **hf_experts.SPARSE_LAYER_DEFAULTS,
                "normalised": False,
                "max_positions": 32768,
                "norm_eps": 1e-6,
                "qkv_bias": True,
                "activation": "silu",
                "attention_dropout": 0.0,
                "aux_loss_coef": 0.001,
                "tied_head": False,
                "rope.theta": 10000.0,
                "rope.type": "default",
                "rope.pairing": "halves",
                **HF_WINDOW_DEFAULTS,
            },
            implied=HF_WINDOW_IMPLIED,
        ),
    },
    tables={"hf": hf, "transformers5": transformers5},
    trunk="model.",
)
