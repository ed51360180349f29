"""Qwen3-MoE: 30B-A3B, 235B-A22B and Qwen3-Coder. Yang et al. 2025."""

from reference_impl.ffn import ACTIVATIONS
from reference_impl.models.qwen3_moe import Qwen3MoeConfig, Qwen3MoeModel
from weight_mapping import hf_decoder, hf_experts
from weight_mapping.family import AMOUNT, COUNT, FLAG, Check, Family, Key, Layout, given
from weight_mapping.hf_decoder import HERE, THERE
from weight_mapping.rules import Rule, Table, rename
from weight_mapping.window import HF_WINDOW_DEFAULTS, HF_WINDOW_IMPLIED, HF_WINDOW_KEYS, WINDOW_CHECK


def hf(config: Qwen3MoeConfig) -> Table:
    """The names of the hub, one tensor an expert and matrix; transformers 4 has the same in memory."""
    return _table(config, hf_experts.apart(HERE + "mlp.experts.{expert}", THERE + "ffn.experts", config.d_ff_expert))


def transformers5(config: Qwen3MoeConfig) -> Table:
    """What transformers 5 has in memory: a layer's experts in two tensors, (x, 2f, d) and (x, d, f)."""
    return _table(config, hf_experts.together(HERE + "mlp.experts", THERE + "ffn.experts"))


def _table(config: Qwen3MoeConfig, experts: tuple[Rule, ...]) -> Table:
    return Table(
        index={"layer": range(config.n_layers), "expert": range(config.n_experts), "part": ("weight", "bias")},
        rules=(
            *hf_decoder.trunk(config.tied_head),
            *hf_decoder.grouped_attention(),
            *hf_decoder.gated(HERE + "mlp", THERE + "ffn"),
            rename(HERE + "mlp.gate.weight", THERE + "ffn.router.weight"),
            *experts,
        ),
        drops=(hf_decoder.OLD_BUFFERS,),
    )


FAMILY = Family(
    architecture="Qwen3MoeForCausalLM",
    config=Qwen3MoeConfig,
    model=Qwen3MoeModel,
    rope_width="d_head",
    checks=(
        Check("{n_heads} is no multiple of {n_kv_heads}", lambda f: f["n_heads"] % f["n_kv_heads"] == 0),
        Check("{d_model} is no multiple of {n_heads}; give the width of a head", lambda f: f["d_head"] is not None),
        Check("{d_head} is odd, and RoPE turns pairs", lambda f: f["d_head"] % 2 == 0),
        Check(f"{{activation}} is not one of {', '.join(ACTIVATIONS)}", lambda f: f["activation"] in ACTIVATIONS),
        Check("{top_k} is more than {n_experts}", lambda f: f["top_k"] <= f["n_experts"]),
        WINDOW_CHECK,
    ),
    layouts={
        "hf": Layout(
            names=("qwen3_moe",),
            keys={
                **hf_decoder.KEYS,
                "num_key_value_heads": Key("n_kv_heads", given(COUNT)),
                "head_dim": Key("d_head", COUNT),
                "moe_intermediate_size": Key("d_ff_expert", COUNT),
                "num_experts": Key("n_experts", COUNT),
                "num_local_experts": Key("n_experts", COUNT),  # what transformers 5 calls it as well
                "num_experts_per_tok": Key("top_k", COUNT),
                **hf_experts.SPARSE_LAYER_KEYS,
                "norm_topk_prob": Key("normalised", given(FLAG)),
                "router_aux_loss_coef": Key("aux_loss_coef", AMOUNT),
                **HF_WINDOW_KEYS,
            },
            only={"mlp_bias": (False,), "use_mrope": (False,)},
            harmless=("output_router_logits",),
            defaults={
                "vocab_size": 151936,
                "d_model": 2048,
                "d_ff": 6144,
                "n_layers": 24,
                "n_heads": 32,
                "n_kv_heads": 4,
                "d_head": lambda f: f["d_model"] // f["n_heads"] if f["d_model"] % f["n_heads"] == 0 else None,
                "d_ff_expert": 768,
                "n_experts": 128,
                "top_k": 8,
                **hf_experts.SPARSE_LAYER_DEFAULTS,
                "normalised": False,
                "max_positions": 32768,
                "norm_eps": 1e-6,
                "attention_bias": False,
                "activation": "silu",
                "attention_dropout": 0.0,
                "aux_loss_coef": 0.001,
                "tied_head": False,
                "rope.theta": 10000.0,
                "rope.type": "default",
                "rope.pairing": "halves",
                **HF_WINDOW_DEFAULTS,
                "window.n_without": 0,  # without the key, every layer has the window
            },
            implied=HF_WINDOW_IMPLIED,
        ),
    },
    tables={"hf": hf, "transformers5": transformers5},
    trunk="model.",
)
