"""The names of PyTorch's own modules: nn.MultiheadAttention, its Transformer layers, nn.Transformer.

PyTorch packs the rows of q, k and v into one matrix where all three read vectors of one width, and keeps three otherwise.
What `add_bias_kv` adds is refused as unexpected. `add_zero_attn` stores nothing, so no table can tell: MHA does not have it.
"""

from weight_mapping.patterns import Index
from weight_mapping.rules import Rule, Split, Table, rename

PART: Index = {"part": ("weight", "bias")}


def _attention(here: str, there: str, d_model: int) -> tuple[Rule, ...]:
    qkv = tuple(f"{there}{name}.{{part}}" for name in ("q_proj", "k_proj", "v_proj"))
    return (
        Rule((here + "in_proj_{part}",), qkv, (Split((d_model,) * 3),)),
        rename(here + "out_proj.{part}", there + "o_proj.{part}"),
    )


def _ffn(here: str, there: str) -> tuple[Rule, ...]:
    return (
        rename(here + "linear1.{part}", there + "ffn.in_proj.{part}"),
        rename(here + "linear2.{part}", there + "ffn.out_proj.{part}"),
    )


def _encoder_layer(here: str, there: str, d_model: int) -> tuple[Rule, ...]:
    return (
        *_attention(here + "self_attn.", there + "attn.", d_model),
        rename(here + "norm1.{part}", there + "attn_norm.{part}"),
        *_ffn(here, there),
        rename(here + "norm2.{part}", there + "ffn_norm.{part}"),
    )


def _decoder_layer(here: str, there: str, d_model: int) -> tuple[Rule, ...]:
    return (
        *_attention(here + "self_attn.", there + "attn.", d_model),
        rename(here + "norm1.{part}", there + "attn_norm.{part}"),
        *_attention(here + "multihead_attn.", there + "cross.", d_model),
        rename(here + "norm2.{part}", there + "cross_norm.{part}"),
        *_ffn(here, there),
        rename(here + "norm3.{part}", there + "ffn_norm.{part}"),
    )


def attention(d_model: int) -> Table:
    """nn.MultiheadAttention -> MHA."""
    return Table(index=PART, rules=_attention("", "", d_model))


def attention_to_memory(d_model: int) -> Table:
    """nn.MultiheadAttention(kdim=n, vdim=n) -> MHA(d_memory=n). The biases, all of one length, stay packed."""
    return Table(
        index={"name": ("q", "k", "v"), **PART},
        rules=(
            rename("{name}_proj_weight", "{name}_proj.weight"),
            Rule(("in_proj_bias",), ("{name}_proj.bias",), (Split((d_model,) * 3),)),
            rename("out_proj.{part}", "o_proj.{part}"),
        ),
    )


def encoder_layer(d_model: int) -> Table:
    """nn.TransformerEncoderLayer -> TransformerEncoderLayer."""
    return Table(index=PART, rules=_encoder_layer("", "", d_model))


def decoder_layer(d_model: int) -> Table:
    """nn.TransformerDecoderLayer -> TransformerDecoderLayer."""
    return Table(index=PART, rules=_decoder_layer("", "", d_model))


def transformer(d_model: int, n_encoder_layers: int, n_decoder_layers: int, *, here: str = "") -> Table:
    """nn.Transformer -> Transformer. here: under which name a larger module holds it.

    Beside it an `embed`, if there is one -> TransformerModel, whose one embedding its encoder names first.
    """
    return Table(
        index={"enc": range(n_encoder_layers), "dec": range(n_decoder_layers), **PART},
        rules=(
            rename("embed.weight", "encoder.embed.weight"),
            *_encoder_layer(here + "encoder.layers.{enc}.", "encoder.layers.{enc}.", d_model),
            rename(here + "encoder.norm.{part}", "encoder.norm.{part}"),
            *_decoder_layer(here + "decoder.layers.{dec}.", "decoder.layers.{dec}.", d_model),
            rename(here + "decoder.norm.{part}", "decoder.norm.{part}"),
        ),
    )
