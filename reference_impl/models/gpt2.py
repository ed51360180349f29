"""GPT-2, with attention to an encoder's memory or without.

R1, "GPT2Layer" and "GPT2Model"; Radford et al. 2019.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from reference_impl.attention import MHA
from reference_impl.cache import KVCache
from reference_impl.embedding import LearnedPositions
from reference_impl.ffn import FFN
from reference_impl.layer import TransformerLayer
from reference_impl.mask import causal_mask, padding_mask, padding_mask_or_all
from reference_impl.norm import LayerNorm
from reference_impl.site import Site


@dataclass(frozen=True, kw_only=True)
class GPT2Config:
    """What GPT-2 and its descendants vary. Dropouts are probabilities.

    scaled: scores are multiplied with 1 / sqrt(d_head). scaled_by_layer: those of layer i are divided by i + 1 as well.
    """

    vocab_size: int
    d_model: int
    n_layers: int
    n_heads: int
    d_ff: int
    max_positions: int
    norm_eps: float
    activation: str
    scaled: bool
    scaled_by_layer: bool
    cross_attention: bool
    tied_head: bool
    embedding_dropout: float
    dropout: float
    attention_dropout: float


class GPT2Layer(TransformerLayer):
    """z = x + Dropout(MHA(LayerNorm(x))); y = z + Dropout(FFN(LayerNorm(z))), with CrossAttention between the two or not."""

    def __init__(self, config: GPT2Config, layer: int):
        d_head = config.d_model // config.n_heads
        scale = d_head**-0.5 if config.scaled else 1.0
        if config.scaled_by_layer:
            scale = scale / (layer + 1)

        def attention() -> MHA:
            return MHA(
                d_model=config.d_model,
                n_heads=config.n_heads,
                d_head=d_head,
                scale=scale,
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
            norm_first=True,
            dropout=config.dropout,
        )


class GPT2Model(nn.Module):
    """LMHead(LayerNorm(GPT2Layer^N(Dropout(TokenEmbedding(ids) + PositionEmbedding(positions)))))."""

    def __init__(self, config: GPT2Config):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = LearnedPositions(config.max_positions, config.d_model)
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.mask = Site()
        self.layers = nn.ModuleList(GPT2Layer(config, layer) for layer in range(config.n_layers))
        self.norm = LayerNorm(config.d_model, config.norm_eps)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tied_head:
            self.lm_head.weight = self.embed.weight

    def new_cache(self) -> KVCache:
        """An empty cache that fits this model."""
        return KVCache(len(self.layers), cross=self.config.cross_attention)

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
        """Logits of the next token after each of `ids`.

        positions: counted on from the cache where they are not given. real, memory_real: False for padding, over the
        cached tokens too. types: tokens whose embeddings are added, as dialogue models use to say who speaks. memory:
        an encoder's output, for a model with cross-attention.
        """
        past = cache.length if cache is not None else 0
        slots = torch.arange(past + ids.shape[1], device=ids.device)  # as (t,)
        visible = causal_mask(slots[past:], slots)  # as (1, 1, s, t)
        if real is not None:
            visible = visible & padding_mask(real)  # as (b, 1, s, t)
        visible, memory_visible = self.mask(visible), None
        if memory is not None:
            memory_visible = padding_mask_or_all(memory_real, len(ids), memory.shape[1], ids.device)  # as (b, 1, 1, m)

        x = self.embed(ids) + self.positions(slots[None, past:] if positions is None else positions)  # as (b, s, d)
        if types is not None:
            x = x + self.embed(types)
        x = self.dropout(x)
        for i, layer in enumerate(self.layers):
            held = cache.layers[i] if cache is not None else None
            x = layer(x, visible, memory=memory, memory_visible=memory_visible, cache=held)
        return self.lm_head(self.norm(x))
