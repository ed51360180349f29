"""FNet. R1, "Token Mixing 与 Channel Mixing"; Lee-Thorp et al. 2021, "FNet: Mixing Tokens with Fourier Transforms"."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from reference_impl.embedding import LearnedPositions
from reference_impl.ffn import FFN
from reference_impl.fourier import FourierMixing
from reference_impl.heads import MLMHead, Pooler
from reference_impl.norm import LayerNorm


@dataclass(frozen=True, kw_only=True)
class FNetConfig:
    """What FNets vary. Sizes are counts of components; `pad_id` is the row of the embedding that training leaves alone."""

    vocab_size: int
    d_model: int
    n_layers: int
    d_ff: int
    max_positions: int
    n_types: int
    norm_eps: float
    activation: str
    dropout: float
    pad_id: int | None
    tied_head: bool


class FNetEmbedding(nn.Module):
    """Dropout(Linear(LayerNorm(TokenEmbedding(ids) + TokenTypeEmbedding(types) + PositionEmbedding(positions))))."""

    def __init__(self, config: FNetConfig):
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_id)
        self.types = nn.Embedding(config.n_types, config.d_model)
        self.positions = LearnedPositions(config.max_positions, config.d_model)
        self.norm = LayerNorm(config.d_model, config.norm_eps)
        self.proj = nn.Linear(config.d_model, config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, ids: Int[Tensor, "b s"], types: Int[Tensor, "b s"], positions: Int[Tensor, "#b s"]
    ) -> Float[Tensor, "b s d"]:
        x = self.tokens(ids) + self.types(types) + self.positions(positions)  # as (b, s, d)
        return self.dropout(self.proj(self.norm(x)))


class FNetLayer(nn.Module):
    """z = LayerNorm(x + FourierMixing(x)); y = LayerNorm(z + Dropout(FFN(z)))."""

    def __init__(self, config: FNetConfig):
        super().__init__()
        self.mixer = FourierMixing()
        self.mixer_norm = LayerNorm(config.d_model, config.norm_eps)
        self.ffn = FFN(d_model=config.d_model, d_ff=config.d_ff, bias=True, activation=config.activation)
        self.ffn_dropout = nn.Dropout(config.dropout)
        self.ffn_norm = LayerNorm(config.d_model, config.norm_eps)

    def forward(self, x: Float[Tensor, "b s d"]) -> Float[Tensor, "b s d"]:
        z = self.mixer_norm(x + self.mixer(x))
        return self.ffn_norm(z + self.ffn_dropout(self.ffn(z)))


class FNetModel(nn.Module):
    """MLMHead(FNetLayer^N(FNetEmbedding(ids))), and beside it Pooler(FNetLayer^N(FNetEmbedding(ids)))."""

    def __init__(self, config: FNetConfig):
        super().__init__()
        self.config = config
        self.embed = FNetEmbedding(config)
        self.layers = nn.ModuleList(FNetLayer(config) for _ in range(config.n_layers))
        self.pooler = Pooler(config.d_model)
        self.mlm_head = MLMHead(config.d_model, config.vocab_size, activation=config.activation, norm_eps=config.norm_eps)
        if config.tied_head:
            self.mlm_head.decoder.weight = self.embed.tokens.weight

    def forward(
        self,
        ids: Int[Tensor, "b s"],
        *,
        positions: Int[Tensor, "#b s"] | None = None,
        real: Bool[Tensor, "b s"] | None = None,
        types: Int[Tensor, "b s"] | None = None,
    ) -> Float[Tensor, "b s v"]:
        """Logits of the token at each of `ids`. What `pooler` gives is read there.

        positions: without them, 0, 1, 2 …. types: which sentence a token is of; without them, the first. Errors:
        ValueError when `real` says that something is padding: it would be mixed into everything, see `FourierMixing`.
        """
        if real is not None and not real.all():
            raise ValueError("FNet cannot hide padding: give sequences of each length a batch of their own")
        slots = torch.arange(ids.shape[1], device=ids.device)[None]  # as (1, s)
        types = torch.zeros_like(ids) if types is None else types
        x = self.embed(ids, types, slots if positions is None else positions)  # as (b, s, d)
        for layer in self.layers:
            x = layer(x)
        self.pooler(x)  # as (b, d)
        return self.mlm_head(x)
