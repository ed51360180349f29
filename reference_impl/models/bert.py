"""BERT: the encoder, and the same layers as a decoder, with or without an encoder's memory.

R1, "BertLayer" and "BertModel"; Devlin et al. 2018.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from reference_impl.attention import MHA
from reference_impl.cache import KVCache
from reference_impl.embedding import LearnedPositions
from reference_impl.ffn import FFN
from reference_impl.heads import MLMHead, Pooler
from reference_impl.layer import TransformerLayer
from reference_impl.mask import causal_mask, padding_mask, padding_mask_or_all
from reference_impl.norm import LayerNorm
from reference_impl.site import Site

Heads = Literal["mlm", "pretraining", "none"]
"""What lies on the layers: the MLM head; that, the pooler and a head for the next sentence; or the pooler alone."""


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """What BERT and its descendants vary. Dropouts are probabilities. pad_id: a token whose embedding is not trained."""

    vocab_size: int
    d_model: int
    n_layers: int
    n_heads: int
    d_ff: int
    max_positions: int
    n_types: int
    norm_eps: float
    activation: str
    causal: bool
    cross_attention: bool
    heads: Heads
    tied_head: bool
    pad_id: int | None
    dropout: float
    attention_dropout: float


class BertEmbedding(nn.Module):
    """Dropout(LayerNorm(TokenEmbedding(ids) + TokenTypeEmbedding(types) + PositionEmbedding(positions)))."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_id)
        self.types = nn.Embedding(config.n_types, config.d_model)
        self.positions = LearnedPositions(config.max_positions, config.d_model)
        self.norm = LayerNorm(config.d_model, config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, ids: Int[Tensor, "b s"], types: Int[Tensor, "b s"], positions: Int[Tensor, "#b s"]
    ) -> Float[Tensor, "b s d"]:
        x = self.tokens(ids) + self.types(types)  # as (b, s, d)
        x = x + self.positions(positions)
        return self.dropout(self.norm(x))


class BertLayer(TransformerLayer):
    """z = LayerNorm(x + Dropout(MHA(x))); y = LayerNorm(z + Dropout(FFN(z))), with CrossAttention between the two or not."""

    def __init__(self, config: BertConfig):
        d_head = config.d_model // config.n_heads

        def attention() -> MHA:
            return MHA(
                d_model=config.d_model,
                n_heads=config.n_heads,
                d_head=d_head,
                scale=d_head**-0.5,
                dropout=config.attention_dropout,
            )

        def norm() -> LayerNorm:
            return LayerNorm(config.d_model, config.norm_eps)

        super().__init__(
            attn=attention(),
            attn_norm=norm(),
            cross=attention() if config.cross_attention else None,
            cross_norm=norm() if config.cross_attention else None,
            ffn=FFN(d_model=config.d_model, d_ff=config.d_ff, bias=True, activation=config.activation),
            ffn_norm=norm(),
            norm_first=False,
            dropout=config.dropout,
        )


class BertModel(nn.Module):
    """MLMHead(BertLayer^N(BertEmbedding(ids))). Post-LN, so that no norm follows the last layer."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.config = config
        self.embed = BertEmbedding(config)
        self.mask = Site()
        self.layers = nn.ModuleList(BertLayer(config) for _ in range(config.n_layers))
        self.mlm_head = None
        if config.heads != "none":
            self.mlm_head = MLMHead(
                config.d_model, config.vocab_size, activation=config.activation, norm_eps=config.norm_eps
            )
        self.pooler = Pooler(config.d_model) if config.heads != "mlm" else None
        self.nsp_head = nn.Linear(config.d_model, 2) if config.heads == "pretraining" else None
        if self.mlm_head is not None and config.tied_head:
            self.mlm_head.decoder.weight = self.embed.tokens.weight

    def new_cache(self) -> KVCache | None:
        """An empty cache that fits this model; None for an encoder, whose tokens would have to see those that come later."""
        return KVCache(len(self.layers), cross=self.config.cross_attention) if self.config.causal else None

    def forward(
        self,
        ids: Int[Tensor, "b s"],
        *,
        positions: Int[Tensor, "#b s"] | None = None,
        real: Bool[Tensor, "b t"] | None = None,
        types: Int[Tensor, "b s"] | None = None,
        memory: Float[Tensor, "b m d"] | None = None,
        memory_real: Bool[Tensor, "b m"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "b s v"]:
        """Logits of the token at each place, or as a decoder of the next one; without an MLM head, the last layer's output.

        positions: counted on from the cache where they are not given. real, memory_real: False for padding, over the
        cached tokens too. types: the sentence of each token, 0 where they are not given. memory: an encoder's output,
        for a decoder with cross-attention. What `pooler` and `nsp_head` give is read there, where they are.
        """
        past = cache.length if cache is not None else 0
        slots = torch.arange(past + ids.shape[1], device=ids.device)  # as (t,)
        visible = causal_mask(slots[past:], slots)  # as (1, 1, s, t)
        if not self.config.causal:
            visible = torch.ones_like(visible)
        if real is not None:
            visible = visible & padding_mask(real)  # as (b, 1, s, t)
        visible, memory_visible = self.mask(visible), None
        if memory is not None:
            memory_visible = padding_mask_or_all(memory_real, len(ids), memory.shape[1], ids.device)  # as (b, 1, 1, m)

        types = torch.zeros_like(ids) if types is None else types
        x = self.embed(ids, types, slots[None, past:] if positions is None else positions)  # as (b, s, d)
        for i, layer in enumerate(self.layers):
            held = cache.layers[i] if cache is not None else None
            x = layer(x, visible, memory=memory, memory_visible=memory_visible, cache=held)
        if self.pooler is not None:
            pooled = self.pooler(x)  # as (b, d)
            if self.nsp_head is not None:
                self.nsp_head(pooled)  # as (b, 2)
        return x if self.mlm_head is None else self.mlm_head(x)
