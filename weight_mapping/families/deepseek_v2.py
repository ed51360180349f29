"""DeepSeek-V2, V2-Lite and Coder-V2, which share one config. DeepSeek-AI 2024 (V2)."""

from dataclasses import replace

from reference_impl.ffn import ACTIVATIONS
from reference_impl.models.deepseek_v2 import DeepseekV2Config, DeepseekV2Model
from weight_mapping import hf_decoder, hf_experts
from weight_mapping.family import (
    COUNT,
    COUNT_OR_NULL,
    FLAG,
    POSITIVE,
    PROBABILITY,
    WHOLE,
    Check,
    Family,
    Key,
    Layout,
    given,
)
from weight_mapping.hf_decoder import HERE, THERE
from weight_mapping.rules import Rule, Table, rename


def hf(config: DeepseekV2Config) -> Table:
    """The names of the hub, one tensor an expert; transformers 4 has the same in memory."""
    return _table(config, hf_experts.apart(HERE + "mlp.experts.{expert}", THERE + "ffn.experts", config.d_ff_expert))


def transformers5(config: DeepseekV2Config) -> Table:
    """What transformers 5 has in memory: a layer's experts in two tensors, (x, 2f, d) and (x, d, f)."""
    return _table(config, hf_experts.together(HERE + "mlp.experts", THERE + "ffn.experts"))


def _table(config: DeepseekV2Config, experts: tuple[Rule, ...]) -> Table:
    return Table(
        index={"layer": range(config.n_layers), "expert": range(config.n_experts), "part": ("weight", "bias")},
        rules=(
            *hf_decoder.trunk(config.tied_head),
            *hf_decoder.latent_attention(),
            rename(HERE + "self_attn.kv_b_proj.weight", THERE + "attn.kv_b_proj.weight"),
            *hf_decoder.gated(HERE + "mlp", THERE + "ffn"),
            rename(HERE + "mlp.gate.weight", THERE + "ffn.router.weight"),
            *hf_decoder.gated(HERE + "mlp.shared_experts", THERE + "ffn.shared"),
            *experts,
        ),
        drops=(hf_decoder.OLD_BUFFERS,),
    )


_METHODS = {"greedy": False, "group_limited_greedy": True}
_METHOD = replace(
    given(FLAG),
    says=f"one of {', '.join(_METHODS)}",
    read=lambda v: _METHODS.get(v) if type(v) is str else None,
    write=lambda v: {limited: name for name, limited in _METHODS.items()}[v],
)

FAMILY = Family(
    architecture="DeepseekV2ForCausalLM",
    config=DeepseekV2Config,
    model=DeepseekV2Model,
    rope_width="d_rope",
    checks=(
        Check("{d_rope} is odd, and RoPE turns pairs", lambda f: f["d_rope"] % 2 == 0),
        Check(f"{{activation}} is not one of {', '.join(ACTIVATIONS)}", lambda f: f["activation"] in ACTIVATIONS),
        Check("{n_experts} is no multiple of {n_groups}", lambda f: f["n_experts"] % f["n_groups"] == 0),
        Check("{top_groups} is more than {n_groups}", lambda f: f["top_groups"] <= f["n_groups"]),
        Check("{top_k} is more than {n_experts}", lambda f: f["top_k"] <= f["n_experts"]),
        Check(
            "{top_k} is more than the experts in {top_groups} of {n_groups}, with {n_experts}",
            lambda f: not f["limited"] or f["top_k"] <= f["top_groups"] * f["n_experts"] // f["n_groups"],
        ),
        Check(
            "{normalised} with {scaling}: readers differ on whether renormalised weights are scaled; 1 is clear",
            lambda f: not f["normalised"] or f["scaling"] == 1,
        ),
    ),
    layouts={
        "hf": Layout(
            names=("deepseek_v2",),
            keys={
                **hf_decoder.KEYS,
                "attention_dropout": Key("attention_dropout", PROBABILITY),
                "mlp_bias": Key("mlp_bias", FLAG),
                "first_k_dense_replace": Key("n_dense_layers", given(WHOLE)),
                "moe_intermediate_size": Key("d_ff_expert", COUNT),
                "q_lora_rank": Key("q_lora_rank", COUNT_OR_NULL),
                "kv_lora_rank": Key("kv_lora_rank", COUNT),
                "qk_nope_head_dim": Key("d_nope", COUNT),
                "qk_rope_head_dim": Key("d_rope", COUNT),
                "v_head_dim": Key("d_v", COUNT),
                "n_routed_experts": Key("n_experts", given(COUNT)),
                "num_experts": Key("n_experts", COUNT),  # what releases of transformers 5 call it as well
                "num_local_experts": Key("n_experts", COUNT),
                "n_shared_experts": Key("n_shared_experts", given(COUNT)),
                "num_experts_per_tok": Key("top_k", COUNT),
                "topk_method": Key("limited", _METHOD),
                "n_group": Key("n_groups", COUNT),
                "topk_group": Key("top_groups", COUNT),
                "norm_topk_prob": Key("normalised", given(FLAG)),
                "routed_scaling_factor": Key("scaling", POSITIVE),
            },
            only={
                "scoring_func": ("softmax",),
                "moe_layer_freq": (1,),  # from the first that is no dense layer on, every layer has experts
                "pretraining_tp": (None, 1),
            },
            harmless=(
                *"aux_loss_alpha seq_aux output_router_logits ep_size".split(),  # training, outputs, where experts lie
            ),
            defaults={  # but for num_experts_per_tok, which no reader has one for
                "vocab_size": 102400,
                "d_model": 4096,
                "d_ff": 11008,
                "n_layers": 32,
                "n_dense_layers": 0,
                "n_heads": 32,
                "q_lora_rank": 1536,
                "kv_lora_rank": 512,
                "d_nope": 128,
                "d_rope": 64,
                "d_v": 128,
                "d_ff_expert": 1407,
                "n_experts": 64,
                "n_shared_experts": 2,
                "limited": False,
                "n_groups": 1,
                "top_groups": 1,
                "normalised": False,
                "scaling": 1.0,
                "max_positions": 2048,
                "norm_eps": 1e-6,
                "attention_bias": False,
                "mlp_bias": False,
                "activation": "silu",
                "attention_dropout": 0.0,
                "tied_head": False,
                "rope.theta": 10000.0,
                "rope.type": "default",
                "rope.pairing": "complex",
            },
            implied={
                "num_key_value_heads": lambda c: c.n_heads,
                "head_dim": lambda c: c.d_rope,  # so transformers calls what RoPE turns
                "qk_head_dim": lambda c: c.d_nope + c.d_rope,
                # what the reference takes for granted, for readers that look
                "scoring_func": lambda _: "softmax",
                "moe_layer_freq": lambda _: 1,
            },
        ),
    },
    tables={"hf": hf, "transformers5": transformers5},
    trunk="model.",
)
