"""Mamba. R1, "Token Mixing 与 Channel Mixing"; Gu and Dao 2023."""

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from reference_impl.mamba import STATE, MambaMixer, scan, scan_parallel
from reference_impl.norm import RMSNorm
from reference_impl.precision import widen
from reference_impl.recurrence import LayerState, StateCache


@dataclass(frozen=True, kw_only=True)
class MambaConfig:
    """What Mambas vary. d_inner is expand * d_model; d_state is h's numbers a channel; dt_rank is `time_step_rank`."""

    vocab_size: int
    d_model: int
    n_layers: int
    expand: int
    d_state: int
    conv_width: int
    dt_rank: int
    norm_eps: float
    bias: bool
    conv_bias: bool
    activation: str
    wide_residual: bool
    tied_head: bool

    @property
    def d_inner(self) -> int:
        return self.expand * self.d_model


class MambaLayer(nn.Module):
    """y = x + MambaMixer(RMSNorm(x)): token mixer and channel mixer in one, so that there is one residual."""

    def __init__(self, config: MambaConfig):
        super().__init__()
        self.wide_residual = config.wide_residual
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        self.mixer = MambaMixer(
            d_model=config.d_model,
            d_inner=config.d_inner,
            d_state=config.d_state,
            conv_width=config.conv_width,
            dt_rank=config.dt_rank,
            bias=config.bias,
            conv_bias=config.conv_bias,
            activation=config.activation,
        )

    def forward(
        self, x: Float[Tensor, "b s d"], real: Bool[Tensor, "b s"] | None = None, cache: LayerState | None = None
    ) -> Float[Tensor, "b s d"]:
        y = self.mixer(self.norm(x.to(self.norm.weight.dtype)), real, cache)
        return (widen(x) if self.wide_residual else x) + y  # the sum over layers may be kept in float32


class MambaModel(nn.Module):
    """LMHead(RMSNorm(MambaLayer^N(TokenEmbedding(ids)))). There are no positions: the order is in the recurrence."""

    def __init__(self, config: MambaConfig):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(MambaLayer(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tied_head:
            self.lm_head.weight = self.embed.weight

    def new_cache(self) -> StateCache:
        """An empty cache that fits this model."""
        return StateCache(len(self.layers), STATE)

    def parallel(self, parallel: bool = True) -> "MambaModel":
        """Choose the form of the scan, all tokens at once or one after the other; the results are the same."""
        for module in self.modules():
            if isinstance(module, MambaMixer):
                module.scan = scan_parallel if parallel else scan
        return self

    def forward(
        self,
        ids: Int[Tensor, "b s"],
        *,
        positions: Int[Tensor, "b s"] | None = None,
        real: Bool[Tensor, "b t"] | None = None,
        cache: StateCache | None = None,
    ) -> Float[Tensor, "b s v"]:
        """Logits of the next token after each of `ids`, in float32 at least.

        positions: not read. real: False for padding, over the tokens of earlier calls too, which are not looked at again.
        cache: is read, and then holds the state after the last of `ids`.
        """
        real = None if real is None else real[:, -ids.shape[1] :]  # as (b, s)
        x = self.embed(ids)  # as (b, s, d)
        for i, layer in enumerate(self.layers):
            x = layer(x, real, cache.layers[i] if cache is not None else None)
        if cache is not None:
            cache.length += ids.shape[1]
        x = self.norm(x)
        return widen(self.lm_head(x.to(self.lm_head.weight.dtype)))
