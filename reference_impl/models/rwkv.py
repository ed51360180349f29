"""RWKV-4. R1, "Token Mixing 与 Channel Mixing"; Peng et al. 2023."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor, nn

from reference_impl.norm import LayerNorm
from reference_impl.recurrence import LayerState, StateCache
from reference_impl.rwkv import STATE, ChannelMixing, TimeMixing, wkv, wkv_parallel


@dataclass(frozen=True, kw_only=True)
class RwkvConfig:
    """What RWKV-4s vary. d_inner is the width inside the token mixer. halve_every: layers, see `RwkvModel`; 0 for never."""

    vocab_size: int
    d_model: int
    n_layers: int
    d_inner: int
    d_ff: int
    norm_eps: float
    halve_every: int
    tied_head: bool

    def halvings(self, layer: int) -> int:
        """How often x was halved before a layer."""
        return layer // self.halve_every if self.halve_every else 0


class RwkvLayer(nn.Module):
    """z = x + TimeMixing(LayerNorm(x)); y = z + ChannelMixing(LayerNorm(z)). The first layer normalises x before that."""

    def __init__(self, config: RwkvConfig, layer: int):
        super().__init__()
        halvings = config.halvings(layer)
        self.embed_norm = LayerNorm(config.d_model, config.norm_eps) if layer == 0 else None
        self.time_norm = LayerNorm(config.d_model, config.norm_eps)
        self.time = TimeMixing(d_model=config.d_model, d_inner=config.d_inner, halvings=halvings)
        self.channel_norm = LayerNorm(config.d_model, config.norm_eps)
        self.channel = ChannelMixing(d_model=config.d_model, d_ff=config.d_ff, halvings=halvings)

    def forward(self, x: Float[Tensor, "b s d"], cache: LayerState | None = None) -> Float[Tensor, "b s d"]:
        x = x if self.embed_norm is None else self.embed_norm(x)
        z = x + self.time(self.time_norm(x), cache)
        return z + self.channel(self.channel_norm(z), cache)


class RwkvModel(nn.Module):
    """LMHead(LayerNorm(RwkvLayer^N(TokenEmbedding(ids)))). There are no positions: the order is in the recurrence.

    In evaluation x is divided by 2 after every `halve_every` layers, so that float16 holds it, and what later layers add
    is divided as often. LayerNorm takes the factor out again, all but its eps, which so grows in effect.
    """

    def __init__(self, config: RwkvConfig):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(RwkvLayer(config, layer) for layer in range(config.n_layers))
        self.norm = LayerNorm(config.d_model, config.norm_eps)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tied_head:
            self.lm_head.weight = self.embed.weight

    def new_cache(self) -> StateCache:
        """An empty cache that fits this model."""
        return StateCache(len(self.layers), STATE)

    def parallel(self, parallel: bool = True) -> "RwkvModel":
        """Choose the form of the token mixer, all tokens at once or one after the other; the results are the same."""
        for module in self.modules():
            if isinstance(module, TimeMixing):
                module.mean = wkv_parallel if parallel else wkv
        return self

    def forward(self, ids: Int[Tensor, "b s"], *, cache: StateCache | None = None) -> Float[Tensor, "b s v"]:
        """Logits of the next token after each of `ids`. There is no mask that could hide padding.

        cache: is read, and then holds the state after the last of `ids`.
        """
        x = self.embed(ids)  # as (b, s, d)
        for i, layer in enumerate(self.layers):
            x = layer(x, cache.layers[i] if cache is not None else None)
            if not self.training and self.config.halvings(i + 1) > self.config.halvings(i):
                x = x / 2
        if cache is not None:
            cache.length += ids.shape[1]
        return self.lm_head(self.norm(x))
