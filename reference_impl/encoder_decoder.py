"""The original Transformer's outline: an encoder reads the source, a decoder writes with its output as memory.

R1, "Transformer"; Vaswani et al. 2017, 3.1.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from reference_impl.cache import KVCache
from reference_impl.losses import IGNORED
from reference_impl.mask import causal_mask, padding_mask_or_all
from reference_impl.site import Site


class Stack(nn.Module):
    """Norm(Layer^N(Dropout(Norm(TokenEmbedding(ids) * scale + PositionEmbedding(pos))))), of which a family has its part.

    positions: from slots (1, s) to vectors (1, s, d), added to the embedding. relative: from query and key slots to what is
    added to the scores of every layer, (1, h, s, t). causal: of a decoder, whose layers also attend to the memory.
    layer_dropout: the probability with which a layer is left out in training (Fan et al. 2019).
    """

    def __init__(
        self,
        *,
        embed: nn.Embedding,
        scale: float,
        layers: Iterable[nn.Module],
        causal: bool,
        dropout: float,
        layer_dropout: float = 0.0,
        positions: nn.Module | None = None,
        embed_norm: nn.Module | None = None,
        relative: nn.Module | None = None,
        norm: nn.Module | None = None,
        norm_dropout: float = 0.0,
    ):
        super().__init__()
        self.causal, self.scale, self.layer_dropout = causal, scale, layer_dropout
        self.embed, self.positions, self.embed_norm, self.dropout = embed, positions, embed_norm, nn.Dropout(dropout)
        self.embedded, self.mask, self.memory_mask = Site(), Site(), Site()
        self.relative = relative
        self.layers = nn.ModuleList(layers)
        self.norm, self.norm_dropout = norm, nn.Dropout(norm_dropout)

    def forward(
        self,
        ids: Int[Tensor, "b s"],
        *,
        real: Bool[Tensor, "b t"] | None = None,
        memory: Float[Tensor, "b m d"] | None = None,
        memory_real: Bool[Tensor, "b m"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "b s d"]:
        """real: False for padding, over the cached tokens too. A decoder's `cache` is read, and added to."""
        past = cache.length if cache is not None else 0
        slots = torch.arange(past + ids.shape[1], device=ids.device)  # as (t,)
        visible = padding_mask_or_all(real, len(ids), len(slots), ids.device)  # as (b, 1, 1, t)
        if self.causal:
            visible = visible & causal_mask(slots[past:], slots)  # as (b, 1, s, t)
        visible, memory_visible = self.mask(visible), None
        if memory is not None:
            memory_visible = padding_mask_or_all(memory_real, len(ids), memory.shape[1], ids.device)
            memory_visible = self.memory_mask(memory_visible)  # as (b, 1, 1, m)

        x = self.embed(ids) * self.scale  # as (b, s, d)
        if self.positions is not None:
            x = x + self.positions(slots[None, past:]).to(x.dtype)  # a table of sines is float32 until it is added
        x = self.embedded(x)
        x = self.dropout(x if self.embed_norm is None else self.embed_norm(x))
        bias = None if self.relative is None else self.relative(slots[past:], slots)  # as (1, h, s, t)
        for i, layer in enumerate(self.layers):
            if self.training and self.layer_dropout > 0 and torch.rand([]) < self.layer_dropout:
                continue
            held = cache.layers[i] if cache is not None else None
            x = layer(x, visible, memory=memory, memory_visible=memory_visible, bias=bias, cache=held)
        return x if self.norm is None else self.norm_dropout(self.norm(x))


class EncoderDecoder(nn.Module):
    """LMHead(Decoder(ids, Encoder(source)) * head_scale) + bias, the head perhaps tied to the decoder's embedding."""

    logits_bias: Tensor | None

    def __init__(self, *, encoder: Stack, decoder: Stack, tied_head: bool, head_scale: float = 1.0, logits_bias: bool = False):
        super().__init__()
        self.encoder, self.decoder, self.head_scale = encoder, decoder, head_scale
        vocab_size, d_model = decoder.embed.weight.shape
        self.lm_head = nn.Linear(d_model, vocab_size, bias=False)
        if tied_head:
            self.lm_head.weight = decoder.embed.weight
        self.register_buffer("logits_bias", torch.zeros(1, vocab_size) if logits_bias else None)  # it is not trained

    def new_cache(self) -> KVCache:
        """An empty cache that fits this model."""
        return KVCache(len(self.decoder.layers), cross=True)

    def forward(
        self,
        ids: Int[Tensor, "b s"],
        *,
        source: Int[Tensor, "b m"],
        source_real: Bool[Tensor, "b m"] | None = None,
        real: Bool[Tensor, "b t"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "b s v"]:
        """Logits of the next token after each of `ids`, the decoder's input, with `source` to read.

        real, source_real: False for padding; real over the cached tokens too. cache: is read, and the new tokens are
        added to it. It keeps what the encoder made of the source, so that this is read once.
        """
        memory = cache.memory if cache is not None else None
        if memory is None:
            memory = self.encoder(source, real=source_real)  # as (b, m, d)
        if cache is not None:
            cache.memory = memory
        y = self.decoder(ids, real=real, memory=memory, memory_real=source_real, cache=cache)  # as (b, s, d)
        logits = self.lm_head(y * self.head_scale)  # as (b, s, v)
        return logits if self.logits_bias is None else logits + self.logits_bias


def shift_right(labels: Int[Tensor, "b s"], *, start: int, pad: int) -> Int[Tensor, "b s"]:
    """The decoder's input that `labels` are the answers to, token by token: `start`, then all labels but the last.

    Labels that are IGNORED become `pad`. R2, 3.1.
    """
    begun = torch.cat([torch.full_like(labels[:, :1], start), labels[:, :-1]], -1)
    return begun.masked_fill(begun == IGNORED, pad)
