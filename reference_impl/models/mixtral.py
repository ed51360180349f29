"""Mixtral. R1, "MixtralLayer", "MoE" and "LlamaModel"; Jiang et al. 2024."""

from dataclasses import dataclass

from reference_impl.attention import Attention
from reference_impl.decoder import Decoder, PreNormLayer
from reference_impl.moe import Experts, MoE, SoftmaxRouter
from reference_impl.norm import RMSNorm
from reference_impl.position import RopeConfig


@dataclass(frozen=True, kw_only=True)
class MixtralConfig:
    """What the Mixtrals vary. `window`: how many tokens a query sees, its own included; None where it sees all.

    aux_loss_coef: what the load-balancing loss is multiplied with in training, see `losses.py`.
    """

    vocab_size: int
    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_ff: int
    n_experts: int
    top_k: int
    max_positions: int
    norm_eps: float
    rope: RopeConfig
    window: int | None
    activation: str
    attention_dropout: float
    router_jitter: float
    aux_loss_coef: float
    tied_head: bool


class MixtralLayer(PreNormLayer):
    """z = x + LlamaAttention(RMSNorm(x)); y = z + MoE(RMSNorm(z)), and no Linear has a bias."""

    def __init__(self, config: MixtralConfig):
        super().__init__()
        self.attn_norm = RMSNorm(config.d_model, config.norm_eps)
        self.attn = Attention(
            d_model=config.d_model,
            n_heads=config.n_heads,
            n_kv_heads=config.n_kv_heads,
            d_head=config.d_head,
            qkv_bias=False,
            out_bias=False,
            pairing=config.rope.pairing,
            dropout=config.attention_dropout,
        )
        self.ffn_norm = RMSNorm(config.d_model, config.norm_eps)
        self.ffn = MoE(
            router=SoftmaxRouter(
                d_model=config.d_model, n_experts=config.n_experts, top_k=config.top_k, normalised=True, rounded=False
            ),
            experts=Experts(
                d_model=config.d_model, d_ff=config.d_ff, n_experts=config.n_experts, activation=config.activation
            ),
            jitter=config.router_jitter,
        )


class MixtralModel(Decoder):
    """LMHead(RMSNorm(MixtralLayer^N(TokenEmbedding(ids)))), with one window for all layers."""

    def __init__(self, config: MixtralConfig):
        super().__init__(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            layers=[MixtralLayer(config) for _ in range(config.n_layers)],
            norm_eps=config.norm_eps,
            rope=config.rope,
            tied_head=config.tied_head,
            windows=[config.window] * config.n_layers,
        )
        self.config = config
