"""Llama. R1, "LlamaLayer" and "LlamaModel"; R2, "3.3 LLama"; Touvron et al. 2023, Dubey et al. 2024."""

from dataclasses import dataclass

from reference_impl.attention import Attention
from reference_impl.decoder import Decoder, PreNormLayer
from reference_impl.ffn import GatedFFN
from reference_impl.norm import RMSNorm
from reference_impl.position import RopeConfig


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """What Llama 1 to 3.x and their descendants (SmolLM2 for one) vary. Sizes are counts of components."""

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
    attention_bias: bool
    attention_dropout: float
    mlp_bias: bool
    activation: str
    tied_head: bool


class LlamaLayer(PreNormLayer):
    """z = x + LlamaAttention(RMSNorm(x)); y = z + GatedFFN(RMSNorm(z))."""

    def __init__(self, config: LlamaConfig):
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
        )
        self.ffn_norm = RMSNorm(config.d_model, config.norm_eps)
        self.ffn = GatedFFN(
            d_model=config.d_model, d_ff=config.d_ff, bias=config.mlp_bias, activation=config.activation
        )


class LlamaModel(Decoder):
    """LMHead(RMSNorm(LlamaLayer^N(TokenEmbedding(ids)))). No position is added at the input, and only attention may drop."""

    def __init__(self, config: LlamaConfig):
        super().__init__(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            layers=[LlamaLayer(config) for _ in range(config.n_layers)],
            norm_eps=config.norm_eps,
            rope=config.rope,
            tied_head=config.tied_head,
        )
        self.config = config
