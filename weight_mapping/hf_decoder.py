"""What HF's decoders have in common around their blocks: names of tensors, keys of config.json."""

from weight_mapping.family import COUNT, FLAG, LAYERS, POSITIVE, PROBABILITY, TEXT, Key
from weight_mapping.rope import HF_ROPE_KEYS
from weight_mapping.rules import Drop, Rule, rename, tie

HERE, THERE = "model.layers.{layer}.", "layers.{layer}."

KEYS = {
    "vocab_size": Key("vocab_size", COUNT),
    "hidden_size": Key("d_model", COUNT),
    "intermediate_size": Key("d_ff", COUNT),
    "num_hidden_layers": Key("n_layers", LAYERS),
    "num_attention_heads": Key("n_heads", COUNT),
    "hidden_act": Key("activation", TEXT),
    "max_position_embeddings": Key("max_positions", COUNT),
    "rms_norm_eps": Key("norm_eps", POSITIVE),
    "attention_bias": Key("attention_bias", FLAG),
    "tie_word_embeddings": Key("tied_head", FLAG),
    "attention_dropout": Key("attention_dropout", PROBABILITY),
    **HF_ROPE_KEYS,
}

UNBIASED_KEYS = {key: entry for key, entry in KEYS.items() if key != "attention_bias"}
"""The same for families that do not leave it to the config whether attention has biases."""


def trunk(tied_head: bool) -> tuple[Rule, ...]:
    """Embedding, head and norms."""
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    both = (rename(embedding, "embed.weight"), rename(head, "lm_head.weight"))
    return (
        *((tie((embedding, head), "embed.weight"),) if tied_head else both),
        rename(HERE + "input_layernorm.weight", THERE + "attn_norm.weight"),
        rename(HERE + "post_attention_layernorm.weight", THERE + "ffn_norm.weight"),
        rename("model.norm.weight", "norm.weight"),
    )


def grouped_attention() -> tuple[Rule, ...]:
    """The four projections of LlamaAttention with their biases, and the norms of QK-norm."""
    here, there = HERE + "self_attn.", THERE + "attn."
    projections = ("q_proj", "k_proj", "v_proj", "o_proj")
    return (
        *(rename(f"{here}{name}.{{part}}", f"{there}{name}.{{part}}") for name in projections),
        *(rename(f"{here}{name}.weight", f"{there}{name}.weight") for name in ("q_norm", "k_norm")),
    )


def latent_attention() -> tuple[Rule, ...]:
    """MLA's projections and norms, without kv_b_proj, which layouts cut in different ways."""
    here, there = HERE + "self_attn.", THERE + "attn."
    return (
        rename(here + "q_proj.weight", there + "q_proj.weight"),
        rename(here + "q_a_proj.{part}", there + "q_a_proj.{part}"),
        rename(here + "q_a_layernorm.weight", there + "q_norm.weight"),
        rename(here + "q_b_proj.weight", there + "q_b_proj.weight"),
        rename(here + "kv_a_proj_with_mqa.{part}", there + "kv_a_proj.{part}"),
        rename(here + "kv_a_layernorm.weight", there + "kv_norm.weight"),
        rename(here + "o_proj.{part}", there + "o_proj.{part}"),
    )


def gated(here: str, there: str) -> tuple[Rule, ...]:
    """The three matrices of a GatedFFN, and their biases."""
    projections = ("gate_proj", "up_proj", "down_proj")
    return tuple(rename(f"{here}.{name}.{{part}}", f"{there}.{name}.{{part}}") for name in projections)


OLD_BUFFERS = Drop(
    source=HERE + "self_attn.rotary_emb.inv_freq",
    reason="a buffer that old releases stored; every reader makes its own from rope_theta",
)
