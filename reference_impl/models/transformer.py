"""The original Transformer: encoder, decoder, and the model around them. R1, "Transformer"; Vaswani et al. 2017."""

import math
from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from reference_impl.attention import MHA
from reference_impl.encoder_decoder import EncoderDecoder, Stack
from reference_impl.ffn import FFN
from reference_impl.layer import TransformerLayer
from reference_impl.norm import LayerNorm
from reference_impl.sinusoidal import sinusoidal_interleaved


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes are counts of components. As published ("base"): d_model 512, 6 layers each, 8 heads of 64, d_ff 2048, ReLU,
    dropout 0.1, post-LN. dropout: everywhere: on probabilities, inside the FFN, on what a part adds, on the input.
    """

    vocab_size: int
    d_model: int
    n_encoder_layers: int
    n_decoder_layers: int
    n_heads: int
    d_head: int
    d_ff: int
    norm_eps: float
    norm_first: bool
    bias: bool
    activation: str
    dropout: float


def _attention(config: TransformerConfig) -> MHA:
    return MHA(
        d_model=config.d_model,
        n_heads=config.n_heads,
        d_head=config.d_head,
        scale=config.d_head**-0.5,
        bias=config.bias,
        dropout=config.dropout,
    )


def _norm(config: TransformerConfig) -> LayerNorm:
    return LayerNorm(config.d_model, config.norm_eps, bias=config.bias)


def _ffn(config: TransformerConfig) -> FFN:
    return FFN(
        d_model=config.d_model, d_ff=config.d_ff, bias=config.bias, activation=config.activation, dropout=config.dropout
    )


class TransformerEncoderLayer(TransformerLayer):
    """Self-attention, then the FFN. R1, "TransformerEncoderLayer"."""

    def __init__(self, config: TransformerConfig):
        super().__init__(
            attn=_attention(config),
            attn_norm=_norm(config),
            ffn=_ffn(config),
            ffn_norm=_norm(config),
            norm_first=config.norm_first,
            dropout=config.dropout,
        )


class TransformerDecoderLayer(TransformerLayer):
    """Self-attention, attention to the memory, then the FFN. R1, "TransformerDecoderLayer"."""

    def __init__(self, config: TransformerConfig):
        super().__init__(
            attn=_attention(config),
            attn_norm=_norm(config),
            cross=_attention(config),
            cross_norm=_norm(config),
            ffn=_ffn(config),
            ffn_norm=_norm(config),
            norm_first=config.norm_first,
            dropout=config.dropout,
        )


class TransformerEncoder(nn.Module):
    """memory = LayerNorm(TransformerEncoderLayer^N(src)). PyTorch has the norm after post-LN layers too, the paper not.

    R2, "2.2 Encoder".
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.layers = nn.ModuleList(TransformerEncoderLayer(config) for _ in range(config.n_encoder_layers))
        self.norm = _norm(config)

    def forward(
        self, x: Float[Tensor, "b m d"], visible: Bool[Tensor, "#b #h #m m"], *, bias: Float[Tensor, "#b #h #m m"] | None = None
    ) -> Float[Tensor, "b m d"]:
        for layer in self.layers:
            x = layer(x, visible, bias=bias)
        return self.norm(x)


class TransformerDecoder(nn.Module):
    """y = LayerNorm(TransformerDecoderLayer^N(tgt, memory)). R2, "2.3 Decoder"."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.layers = nn.ModuleList(TransformerDecoderLayer(config) for _ in range(config.n_decoder_layers))
        self.norm = _norm(config)

    def forward(
        self,
        x: Float[Tensor, "b s d"],
        visible: Bool[Tensor, "#b #h #s s"],
        *,
        memory: Float[Tensor, "b m d"],
        memory_visible: Bool[Tensor, "#b #h #s m"],
        bias: Float[Tensor, "#b #h #s s"] | None = None,
        memory_bias: Float[Tensor, "#b #h #s m"] | None = None,
    ) -> Float[Tensor, "b s d"]:
        for layer in self.layers:
            x = layer(x, visible, memory=memory, memory_visible=memory_visible, bias=bias, memory_bias=memory_bias)
        return self.norm(x)


class Transformer(nn.Module):
    """Both, between vectors and under any masks: what nn.Transformer has, which leaves embedding and output to its user.

    visible, bias: of the target's own tokens; those of the source and of the memory have their names before them.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.encoder, self.decoder = TransformerEncoder(config), TransformerDecoder(config)

    def forward(
        self,
        src: Float[Tensor, "b m d"],
        tgt: Float[Tensor, "b s d"],
        *,
        src_visible: Bool[Tensor, "#b #h #m m"],
        visible: Bool[Tensor, "#b #h #s s"],
        memory_visible: Bool[Tensor, "#b #h #s m"],
        src_bias: Float[Tensor, "#b #h #m m"] | None = None,
        bias: Float[Tensor, "#b #h #s s"] | None = None,
        memory_bias: Float[Tensor, "#b #h #s m"] | None = None,
    ) -> Float[Tensor, "b s d"]:
        memory = self.encoder(src, src_visible, bias=src_bias)  # as (b, m, d)
        return self.decoder(
            tgt, visible, memory=memory, memory_visible=memory_visible, bias=bias, memory_bias=memory_bias
        )


class InterleavedPositions(nn.Module):
    """PE(pos), sines and cosines in turn. It has no longest sequence. R1, "Sinusoidal PE"; R2, "2.1 输入"."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width

    def forward(self, positions: Int[Tensor, "#b s"]) -> Float[Tensor, "#b s d"]:
        return sinusoidal_interleaved(positions, self.width)


class TransformerModel(EncoderDecoder):
    """The whole of it, ids to logits: one embedding for source, target and output.

    Both sides begin with Dropout(TokenEmbedding(ids) * sqrt(d_model) + PE(pos)). R1, "Transformer", "Sinusoidal PE";
    R2, "1.1 词嵌入 Embedding", "2.4 Linear + Softmax + 输出".
    """

    def __init__(self, config: TransformerConfig):
        embed = nn.Embedding(config.vocab_size, config.d_model)
        n_layers = {TransformerEncoderLayer: config.n_encoder_layers, TransformerDecoderLayer: config.n_decoder_layers}
        encoder, decoder = (
            Stack(
                embed=embed,
                scale=math.sqrt(config.d_model),
                positions=InterleavedPositions(config.d_model),
                layers=[layer(config) for _ in range(n)],
                norm=_norm(config),
                causal=layer is TransformerDecoderLayer,
                dropout=config.dropout,
            )
            for layer, n in n_layers.items()
        )
        super().__init__(encoder=encoder, decoder=decoder, tied_head=True)
        self.config = config
