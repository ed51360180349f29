"""Qwen3, dense. R1, "Qwen3Attention", "Qwen3Layer" and "LlamaModel"; Yang et al. 2025."""

from dataclasses import dataclass

from reference_impl.attention import Attention
from reference_impl.decoder import Decoder, PreNormLayer
from reference_impl.ffn import GatedFFN
from reference_impl.norm import RMSNorm
from reference_impl.position import RopeConfig


@dataclass(frozen=True, kw_only=True)
class Qwen3Config:
    """What Qwen3 varies. A query of the `window_layers` sees `window` tokens, its own included; one of the others sees
    all, and where no layer has a window, it is None.
    """

    vocab_size: int
    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_ff: int
    max_positions: int
    norm_eps: float
    rope: RopeConfig
    window: int | None
    window_layers: tuple[int, ...]
    attention_bias: bool
    attention_dropout: float
    activation: str
    tied_head: bool


class Qwen3Layer(PreNormLayer):
    """z = x + Qwen3Attention(RMSNorm(x)); y = z + GatedFFN(RMSNorm(z))."""

    def __init__(self, config: Qwen3Config):
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
        self.ffn = GatedFFN(d_model=config.d_model, d_ff=config.d_ff, bias=False, activation=config.activation)


class Qwen3Model(Decoder):
    """LMHead(RMSNorm(Qwen3Layer^N(TokenEmbedding(ids)))), some layers with a window."""

    def __init__(self, config: Qwen3Config):
        super().__init__(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            layers=[Qwen3Layer(config) for _ in range(config.n_layers)],
            norm_eps=config.norm_eps,
            rope=config.rope,
            tied_head=config.tied_head,
            windows=[config.window if layer in config.window_layers else None for layer in range(config.n_layers)],
        )
        self.config = config
