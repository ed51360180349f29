"""DeepSeek-V3, R1 and V3.1, which share one config. DeepSeek-AI 2024."""

import sys
from dataclasses import replace

from reference_impl.ffn import ACTIVATIONS
from reference_impl.models.deepseek_v3 import DeepseekV3Config, DeepseekV3Model
from weight_mapping import hf_decoder, hf_experts
from weight_mapping.family import COUNT, COUNT_OR_NULL, FLAG, POSITIVE, WHOLE, Check, Family, Key, Layout, given
from weight_mapping.hf_decoder import HERE, THERE
from weight_mapping.rules import Concatenate, Drop, Rule, Table, rename


def hf(config: DeepseekV3Config) -> Table:
    """The names of the hub, one tensor an expert; transformers 4 has the same in memory."""
    return _table(config, *_experts_apart(config), rename(*KV_B))


def transformers5(config: DeepseekV3Config) -> Table:
    """What transformers 5 has in memory: a layer's experts in two tensors, (x, 2f, d) and (x, d, f)."""
    return _table(config, *hf_experts.together(HERE + "mlp.experts", THERE + "ffn.experts"), rename(*KV_B))


def absorbed(config: DeepseekV3Config) -> Table:
    """The hub's names for an engine that absorbs kv_b_proj, and so holds its parts W_UK and W_UV, (h * d, r), apart."""
    source, target = KV_B
    parts = tuple(source.replace("kv_b_proj", part) for part in ("k_up_proj", "v_up_proj"))
    joined = Concatenate((config.d_nope, config.d_v), heads=config.n_heads)
    return _table(config, *_experts_apart(config), Rule(parts, (target,), (joined,)))


KV_B = (HERE + "self_attn.kv_b_proj.weight", THERE + "attn.kv_b_proj.weight")


def _experts_apart(config: DeepseekV3Config) -> tuple[Rule, ...]:
    return hf_experts.apart(HERE + "mlp.experts.{expert}", THERE + "ffn.experts", config.d_ff_expert)


def _table(config: DeepseekV3Config, *varying: Rule) -> Table:
    rules = (
        *hf_decoder.trunk(config.tied_head),
        *hf_decoder.latent_attention(),
        *hf_decoder.gated(HERE + "mlp", THERE + "ffn"),
        rename(HERE + "mlp.gate.weight", THERE + "ffn.router.weight"),
        rename(HERE + "mlp.gate.e_score_correction_bias", THERE + "ffn.router.bias"),
        *hf_decoder.gated(HERE + "mlp.shared_experts", THERE + "ffn.shared"),
        *varying,
    )
    return Table(
        index={
            "layer": range(config.n_layers),
            "mtp": range(config.n_layers, sys.maxsize),
            "expert": range(config.n_experts),
            "part": ("weight", "bias"),
        },
        rules=rules,
        drops=(hf_decoder.OLD_BUFFERS, *_mtp(rules)),
    )


def _mtp(rules: tuple[Rule, ...]) -> tuple[Drop, ...]:
    """Modules that predict further tokens lie behind the layers: one layer more each, and what joins it to the rest."""
    layer, mtp = "model.layers.{layer}.", "model.layers.{mtp}."
    joins = ("embed_tokens", "enorm", "hnorm", "eh_proj", "shared_head.norm", "shared_head.head")
    block = [source.replace(layer, mtp) for rule in rules for source in rule.sources if source.startswith(layer)]
    return tuple(
        Drop(source=source, reason="multi-token prediction, apart from the model proper", beside=mtp + "eh_proj.weight")
        for source in (*block, *(f"{mtp}{name}.weight" for name in joins))
    )


_PAIRING = replace(
    given(FLAG),
    read=lambda v: {True: "gathered", False: "halves"}[v] if type(v) is bool else None,
    write=lambda v: v == "gathered",
)

FAMILY = Family(
    architecture="DeepseekV3ForCausalLM",
    config=DeepseekV3Config,
    model=DeepseekV3Model,
    rope_width="d_rope",
    checks=(
        Check("{d_rope} is odd, and RoPE turns pairs", lambda f: f["d_rope"] % 2 == 0),
        Check(f"{{activation}} is not one of {', '.join(ACTIVATIONS)}", lambda f: f["activation"] in ACTIVATIONS),
        Check("{n_experts} is no multiple of {n_groups}", lambda f: f["n_experts"] % f["n_groups"] == 0),
        Check(
            "{n_experts} leaves {n_groups} with one each, and a group's score is that of its best two",
            lambda f: f["n_experts"] >= 2 * f["n_groups"],
        ),
        Check("{top_groups} is more than {n_groups}", lambda f: f["top_groups"] <= f["n_groups"]),
        Check(
            "{top_k} is more than the experts in {top_groups} of {n_groups}, with {n_experts}",
            lambda f: f["top_k"] <= f["top_groups"] * f["n_experts"] // f["n_groups"],
        ),
    ),
    layouts={
        "hf": Layout(
            names=("deepseek_v3",),
            keys={
                **hf_decoder.KEYS,
                "first_k_dense_replace": Key("n_dense_layers", given(WHOLE)),
                "moe_intermediate_size": Key("d_ff_expert", COUNT),
                "q_lora_rank": Key("q_lora_rank", COUNT_OR_NULL),
                "kv_lora_rank": Key("kv_lora_rank", COUNT),
                "qk_nope_head_dim": Key("d_nope", COUNT),
                "qk_rope_head_dim": Key("d_rope", COUNT),
                "v_head_dim": Key("d_v", COUNT),
                "n_routed_experts": Key("n_experts", given(COUNT)),
                "num_local_experts": Key("n_experts", COUNT),  # what transformers 5 calls it as well
                "n_shared_experts": Key("n_shared_experts", given(COUNT)),
                "num_experts_per_tok": Key("top_k", COUNT),
                "n_group": Key("n_groups", given(COUNT)),
                "topk_group": Key("top_groups", given(COUNT)),
                "norm_topk_prob": Key("normalised", given(FLAG)),
                "routed_scaling_factor": Key("scaling", POSITIVE),
                "rope_interleave": Key("rope.pairing", _PAIRING),
            },
            only={
                "scoring_func": ("sigmoid",),
                "topk_method": ("noaux_tc",),
                "moe_layer_freq": (1,),  # from the first that is no dense layer on, every layer has experts
                "pretraining_tp": (None, 1),
            },
            harmless=(
                *"aux_loss_alpha seq_aux output_router_logits ep_size".split(),  # training, outputs, where experts lie
                *"num_nextn_predict_layers num_mtp_layers".split(),  # recognised by name
            ),
            defaults={
                "vocab_size": 129280,
                "d_model": 7168,
                "d_ff": 18432,
                "n_layers": 61,
                "n_dense_layers": 3,
                "n_heads": 128,
                "q_lora_rank": 1536,
                "kv_lora_rank": 512,
                "d_nope": 128,
                "d_rope": 64,
                "d_v": 128,
                "d_ff_expert": 2048,
                "n_experts": 256,
                "n_shared_experts": 1,
                "top_k": 8,
                "n_groups": 8,
                "top_groups": 4,
                "normalised": True,
                "scaling": 2.5,
                "max_positions": 4096,
                "norm_eps": 1e-6,
                "attention_bias": False,
                "attention_dropout": 0.0,
                "activation": "silu",
                "tied_head": False,
                "rope.theta": 10000.0,
                "rope.type": "default",
                "rope.pairing": "gathered",
            },
            implied={
                "num_key_value_heads": lambda c: c.n_heads,
                "head_dim": lambda c: c.d_rope,  # so transformers calls what RoPE turns
                "qk_head_dim": lambda c: c.d_nope + c.d_rope,
                # what the reference takes for granted, for readers that look
                "scoring_func": lambda _: "sigmoid",
                "topk_method": lambda _: "noaux_tc",
                "moe_layer_freq": lambda _: 1,
                "num_nextn_predict_layers": lambda _: 0,  # they are dropped
            },
        ),
    },
    tables={"hf": hf, "transformers5": transformers5, "absorbed": absorbed},
    trunk="model.",
)
