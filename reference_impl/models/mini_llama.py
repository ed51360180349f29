"""Mini-LLaMA: Llama reduced to what one writes from memory. R2, 4, under its names of classes.

Every head has its own keys, nothing has a bias, the norms have no eps, and the hidden width is four times the model's, which
with a gate is more than Llama takes. What R2 calls `blocks`, `norm1` and `norm2`, `out_proj` and `final_proj` are here
`layers`, `attn_norm` and `ffn_norm`, `o_proj` or `down_proj`, and `lm_head`.
"""

from dataclasses import dataclass

from reference_impl.attention import Attention
from reference_impl.decoder import Decoder, PreNormLayer
from reference_impl.ffn import GatedFFN
from reference_impl.norm import RMSNorm
from reference_impl.position import RopeConfig
from reference_impl.rope_scaling import Unscaled

EPS = 0.0  # x_transformers.RMSNorm has none, so a token of nothing but zeros has no norm here


@dataclass(frozen=True, kw_only=True)
class MiniLlamaConfig:
    """R2 has 32000, 512, 8 and 8. n_heads: divides d_model into heads of even width."""

    vocab_size: int
    d_model: int
    n_layers: int
    n_heads: int

    @property
    def d_head(self) -> int:
        """Width of a head."""
        return self.d_model // self.n_heads

    @property
    def d_ff(self) -> int:
        """Hidden width of the MLP."""
        return 4 * self.d_model

    @property
    def rope(self) -> RopeConfig:
        """rotary_embedding_torch's: components side by side turn together."""
        return RopeConfig(theta=10000.0, width=self.d_head, pairing="pairs", scaling=Unscaled())


class MultiHeadAttention(Attention):
    """LinearOut(Softmax(RoPE(LinearQ(x)) @ RoPE(LinearK(x))^T * rsqrt(d_head) + CausalMask) @ LinearV(x)).

    R2, "4.1 Multi-Head Attention (MHA) 实现".

    As printed there, `self.rope(q)[:, :, :, :, 0]`, nothing is rotated: called like that, RotaryEmbedding takes q for
    positions and returns their angles, the first of which, at frequency 1, is q again. What is meant, and done here, is
    `self.rope.rotate_queries_or_keys(q)`.
    """

    def __init__(self, config: MiniLlamaConfig):
        super().__init__(
            d_model=config.d_model,
            n_heads=config.n_heads,
            n_kv_heads=config.n_heads,
            d_head=config.d_head,
            qkv_bias=False,
            out_bias=False,
            pairing=config.rope.pairing,
        )


class MLP(GatedFFN):
    """LinearOut(SiLU(LinearGate(x)) * LinearUp(x)). R2, "4.2 Feed Forward (MLP) 的实现"."""

    def __init__(self, config: MiniLlamaConfig):
        super().__init__(d_model=config.d_model, d_ff=config.d_ff, bias=False, activation="silu")


class DecoderBlock(PreNormLayer):
    """z = x + MultiHeadAttention(RMSNorm(x)); y = z + MLP(RMSNorm(z)). R2, "4.3 Decoder侧的实现"."""

    def __init__(self, config: MiniLlamaConfig):
        super().__init__()
        self.attn_norm = RMSNorm(config.d_model, EPS)
        self.attn = MultiHeadAttention(config)
        self.ffn_norm = RMSNorm(config.d_model, EPS)
        self.ffn = MLP(config)


class MiniLlama(Decoder):
    """LinearOut(RMSNorm(DecoderBlock^N(TokenEmbedding(ids)))): normalised first, then projected.

    R2, "4.6 LLama的整体实现".

    R2 leaves the causal mask to the caller; it is always on here.
    """

    def __init__(self, config: MiniLlamaConfig):
        super().__init__(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            layers=[DecoderBlock(config) for _ in range(config.n_layers)],
            norm_eps=EPS,
            rope=config.rope,
            tied_head=False,
        )
        self.config = config
