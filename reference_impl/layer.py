"""The layer of the original Transformer and of its relatives, of the encoder and of the decoder."""

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from reference_impl.cache import LayerCache


class TransformerLayer(nn.Module):
    """Attention, attention to a memory where there is one, and a feed-forward network, each inside a residual.

    Post-LN, as published: z = Norm(x + Dropout(MHA(x))). Pre-LN (`norm_first`): z = x + Dropout(MHA(Norm(x))).
    dropout: on what each part adds. cross, cross_norm: CrossAttention and its norm, in decoders that read a memory.
    R1, "TransformerEncoderLayer", "TransformerDecoderLayer", "BertLayer" and "GPT2Layer"; Vaswani et al. 2017, 3.1.
    """

    cross: Any  # None in a layer that reads no memory
    cross_norm: Any

    def __init__(
        self,
        *,
        attn: nn.Module,
        attn_norm: nn.Module,
        ffn: nn.Module,
        ffn_norm: nn.Module,
        cross: nn.Module | None = None,
        cross_norm: nn.Module | None = None,
        norm_first: bool,
        dropout: float,
    ):
        super().__init__()
        self.norm_first = norm_first
        self.attn, self.attn_norm, self.attn_dropout = attn, attn_norm, nn.Dropout(dropout)
        self.cross, self.cross_norm, self.cross_dropout = cross, cross_norm, nn.Dropout(dropout)
        self.ffn, self.ffn_norm, self.ffn_dropout = ffn, ffn_norm, nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "b s d"],
        visible: Bool[Tensor, "#b #h #s t"],
        *,
        memory: Float[Tensor, "b m d2"] | None = None,
        memory_visible: Bool[Tensor, "#b #h #s m"] | None = None,
        bias: Float[Tensor, "#b #h #s t"] | None = None,
        memory_bias: Float[Tensor, "#b #h #s m"] | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "b s d"]:
        """bias, memory_bias: added to the scores of self-attention, and to those of attention to the memory.

        Errors: ValueError for a memory that this layer cannot read.
        """
        if memory is not None and self.cross is None:
            raise ValueError("a memory is given to a layer that has no attention to one")
        held = cache.memory if cache is not None else None
        over_memory = {"memory": memory, "bias": memory_bias, "cache": held}

        if self.norm_first:
            z = x + self.attn_dropout(self.attn(self.attn_norm(x), visible, bias=bias, cache=cache))
            if memory is not None:
                z = z + self.cross_dropout(self.cross(self.cross_norm(z), memory_visible, **over_memory))
            return z + self.ffn_dropout(self.ffn(self.ffn_norm(z)))

        z = self.attn_norm(x + self.attn_dropout(self.attn(x, visible, bias=bias, cache=cache)))
        if memory is not None:
            z = self.cross_norm(z + self.cross_dropout(self.cross(z, memory_visible, **over_memory)))
        return self.ffn_norm(z + self.ffn_dropout(self.ffn(z)))
