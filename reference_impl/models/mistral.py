"""Mistral. R1, "LlamaLayer" and "LlamaModel", with the window of "Qwen3Attention"; Jiang et al. 2023."""

from dataclasses import dataclass

from reference_impl.attention import Attention
from reference_impl.decoder import Decoder, PreNormLayer
from reference_impl.ffn import GatedFFN
from reference_impl.norm import RMSNorm
from reference_impl.position import RopeConfig


@dataclass(frozen=True, kw_only=True)
class MistralConfig:
    """What Mistral 7B to Nemo vary. A query sees `window` tokens, its own included; all where that is None."""

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
    attention_dropout: float
    activation: str
    tied_head: bool


class MistralLayer(PreNormLayer):
    """z = x + LlamaAttention(RMSNorm(x)); y = z + GatedFFN(RMSNorm(z)), and no Linear has a bias."""

    def __init__(self, config: MistralConfig):
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
        self.ffn = GatedFFN(d_model=config.d_model, d_ff=config.d_ff, bias=False, activation=config.activation)


class MistralModel(Decoder):
    """LMHead(RMSNorm(MistralLayer^N(TokenEmbedding(ids)))), with one window for all layers."""

    def __init__(self, config: MistralConfig):
        super().__init__(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            layers=[MistralLayer(config) for _ in range(config.n_layers)],
            norm_eps=config.norm_eps,
            rope=config.rope,
            tied_head=config.tied_head,
            windows=[config.window] * config.n_layers,
        )
        self.config = config
