"""The names that a mini-LLaMA has in R2, section 4, and those under which it is a Llama of the hub."""

from reference_impl.models.mini_llama import MiniLlamaConfig
from weight_mapping import hf_decoder
from weight_mapping.hf_decoder import HERE, THERE
from weight_mapping.rules import Drop, PairsToHalves, Table, rename


def printed(config: MiniLlamaConfig) -> Table:
    """R2's, with the parameters of its packages."""
    here = "blocks.{layer}."
    return Table(
        index={"layer": range(config.n_layers), "name": ("q_proj", "k_proj", "v_proj"), "half": ("gate_proj", "up_proj")},
        rules=(
            rename("embed.weight", "embed.weight"),
            rename(here + "norm1.g", THERE + "attn_norm.weight"),
            rename(here + "attn.{name}.weight", THERE + "attn.{name}.weight"),
            rename(here + "attn.out_proj.weight", THERE + "attn.o_proj.weight"),
            rename(here + "norm2.g", THERE + "ffn_norm.weight"),
            rename(here + "ffn.{half}.weight", THERE + "ffn.{half}.weight"),
            rename(here + "ffn.out_proj.weight", THERE + "ffn.down_proj.weight"),
            rename("norm.g", "norm.weight"),
            rename("final_proj.weight", "lm_head.weight"),
        ),
        drops=(
            Drop(source=here + "attn.rope.freqs", reason="RoPE's frequencies, which are not trained and follow from theta"),
        ),
    )


def hf(config: MiniLlamaConfig) -> Table:
    """A Llama's, to the mini-LLaMA that computes the same: Llama's heads turn component i with i + e/2."""
    halves_to_pairs = PairsToHalves(config.n_heads).inverse
    return Table(
        index={
            "layer": range(config.n_layers),
            "part": ("weight",),
            "rotated": ("q_proj", "k_proj"),
            "name": ("v_proj", "o_proj"),
        },
        rules=(
            *hf_decoder.trunk(tied_head=False),
            rename(HERE + "self_attn.{rotated}.weight", THERE + "attn.{rotated}.weight", halves_to_pairs),
            rename(HERE + "self_attn.{name}.weight", THERE + "attn.{name}.weight"),
            *hf_decoder.gated(HERE + "mlp", THERE + "ffn"),
        ),
    )
