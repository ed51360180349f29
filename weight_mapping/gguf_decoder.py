"""What GGUF's decoders have in common around their architecture's name: names of tensors, keys of the metadata."""

from collections.abc import Mapping

from weight_mapping.container import Checkpoint, Value
from weight_mapping.family import COUNT, NUMBERS, POSITIVE, Key
from weight_mapping.rope import gguf_rope_keys
from weight_mapping.rules import Drop, Op, Rule, rename

HERE, THERE = "blk.{layer}.", "layers.{layer}."


def keys(architecture: str) -> dict[str, Key]:
    """Of a Llama-like model; each begins with its architecture's name."""
    own = {
        "vocab_size": Key("vocab_size", COUNT),
        "embedding_length": Key("d_model", COUNT),
        "feed_forward_length": Key("d_ff", COUNT),
        "block_count": Key("n_layers", COUNT),
        "attention.head_count": Key("n_heads", COUNT),
        "attention.head_count_kv": Key("n_kv_heads", COUNT),
        "attention.key_length": Key("d_head", COUNT),
        "attention.value_length": Key("d_head", COUNT),
        "rope.dimension_count": Key("d_head", COUNT),
        "context_length": Key("max_positions", COUNT),
        "attention.layer_norm_rms_epsilon": Key("norm_eps", POSITIVE),
    }
    return {f"{architecture}.{key}": entry for key, entry in own.items()} | gguf_rope_keys(architecture)


TENSORS_SAY = {
    "vocab_size": lambda c: c.shape("token_embd.weight")[0],
    "tied_head": lambda c: "output.weight" not in c,
}
"""What the metadata leaves out."""


def rules(*, q: tuple[Op, ...] = (), k: tuple[Op, ...] = ()) -> tuple[Rule, ...]:
    """The tensors of a Llama-like model. q, k: what brings their rows into the reference's order, where it is another."""
    return (
        rename("token_embd.weight", "embed.weight"),
        rename("output.weight", "lm_head.weight"),  # a tied head is not stored
        rename(HERE + "attn_norm.weight", THERE + "attn_norm.weight"),
        rename(HERE + "attn_q.{part}", THERE + "attn.q_proj.{part}", *q),
        rename(HERE + "attn_k.{part}", THERE + "attn.k_proj.{part}", *k),
        rename(HERE + "attn_v.{part}", THERE + "attn.v_proj.{part}"),
        rename(HERE + "attn_q_norm.weight", THERE + "attn.q_norm.weight"),
        rename(HERE + "attn_k_norm.weight", THERE + "attn.k_norm.weight"),
        rename(HERE + "attn_output.{part}", THERE + "attn.o_proj.{part}"),
        rename(HERE + "ffn_norm.weight", THERE + "ffn_norm.weight"),
        rename(HERE + "ffn_gate.{part}", THERE + "ffn.gate_proj.{part}"),
        rename(HERE + "ffn_up.{part}", THERE + "ffn.up_proj.{part}"),
        rename(HERE + "ffn_down.{part}", THERE + "ffn.down_proj.{part}"),
        rename("output_norm.weight", "norm.weight"),
    )


DIVISORS = "rope_freqs.weight"

DIVISORS_KEY = {DIVISORS: Key("rope.divisors", NUMBERS)}


def divisors(checkpoint: Checkpoint) -> Value:
    """What the frequencies of RoPE are divided by, one number a pair; None where that changes nothing."""
    numbers = checkpoint.get(DIVISORS)
    return None if numbers is None or bool((numbers == 1).all()) else numbers.tolist()


SCALED_FREQUENCIES = Drop(source=DIVISORS, reason="divisors of RoPE's frequencies, which the config takes")

ONLY: Mapping[str, tuple[Value, ...]] = {
    "rope.scale_linear": (1.0,),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_ext_factor": (-1.0, 1.0),  # below 0 is unset
    "expert_count": (0,),
    "expert_used_count": (0,),
}
"""Keys that could change the maths, without their architecture, with the values at which they do not."""


def only(architecture: str) -> dict[str, tuple[Value, ...]]:
    """Of one architecture."""
    return {f"{architecture}.{key}": values for key, values in ONLY.items()}
