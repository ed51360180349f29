"""Qwen3-MoE. R1, "Qwen3Layer" with the GatedFFN of most layers replaced by "MoE"; Yang et al. 2025."""

from dataclasses import dataclass

from reference_impl.attention import Attention
from reference_impl.decoder import Decoder, PreNormLayer
from reference_impl.ffn import GatedFFN
from reference_impl.moe import Experts, MoE, SoftmaxRouter
from reference_impl.norm import RMSNorm
from reference_impl.position import RopeConfig


@dataclass(frozen=True, kw_only=True)
class Qwen3MoeConfig:
    """What Qwen3-MoE varies. Sizes are counts of components; `d_ff_expert` is `moe_intermediate_size`.

    sparse_step: every so many layers there are experts, but not in the dense_layers. A query of the window_layers sees
    `window` tokens, its own included; None where none has a window. aux_loss_coef: what the load-balancing loss is
    multiplied with in training, see `losses.py`.
    """

    vocab_size: int
    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_ff: int
    d_ff_expert: int
    n_experts: int
    top_k: int
    sparse_step: int
    dense_layers: tuple[int, ...]
    normalised: bool
    max_positions: int
    norm_eps: float
    rope: RopeConfig
    window: int | None
    window_layers: tuple[int, ...]
    attention_bias: bool
    activation: str
    attention_dropout: float
    aux_loss_coef: float
    tied_head: bool

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return (layer + 1) % self.sparse_step == 0 and layer not in self.dense_layers


class Qwen3MoeLayer(PreNormLayer):
    """z = x + Qwen3Attention(RMSNorm(x)); y = z + MoE(RMSNorm(z)), or GatedFFN where the config says so."""

    def __init__(self, config: Qwen3MoeConfig, layer: int):
        super().__init__()
        self.attn_norm = RMSNorm(config.d_model, config.norm_eps)
        self.attn = Attention(
            d_model=config.d_model,
            n_heads=config.n_heads,
            n_kv_heads=config.n_kv_heads,
            d_head=config.d_head,
            qkv_bias=config.attention_bias,
            out_bias=config.attention_bias,
            pairing=config.rope.pairing,
            dropout=config.attention_dropout,
            qk_norm_eps=config.norm_eps,
        )
        self.ffn_norm = RMSNorm(config.d_model, config.norm_eps)
        self.ffn = _mixture(config) if config.is_sparse(layer) else _dense(config)


def _dense(config: Qwen3MoeConfig) -> GatedFFN:
    return GatedFFN(d_model=config.d_model, d_ff=config.d_ff, bias=False, activation=config.activation)


def _mixture(config: Qwen3MoeConfig) -> MoE:
    return MoE(
        router=SoftmaxRouter(
            d_model=config.d_model,
            n_experts=config.n_experts,
            top_k=config.top_k,
            normalised=config.normalised,
            rounded=True,
        ),
        experts=Experts(
            d_model=config.d_model,
            d_ff=config.d_ff_expert,
            n_experts=config.n_experts,
            activation=config.activation,
        ),
    )


class Qwen3MoeModel(Decoder):
    """LMHead(RMSNorm(Qwen3MoeLayer^N(TokenEmbedding(ids))))."""

    def __init__(self, config: Qwen3MoeConfig):
        super().__init__(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            layers=[Qwen3MoeLayer(config, layer) for layer in range(config.n_layers)],
            norm_eps=config.norm_eps,
            rope=config.rope,
            tied_head=config.tied_head,
            windows=[config.window if layer in config.window_layers else None for layer in range(config.n_layers)],
        )
        self.config = config
