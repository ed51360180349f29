"""The layer of the original Transformer as BART and Marian have it, and what their configs share.

R1, "TransformerEncoderLayer" and "TransformerDecoderLayer"; Vaswani et al. 2017, 3.1.
"""

import math
from dataclasses import dataclass

from reference_impl.attention import MHA
from reference_impl.ffn import FFN
from reference_impl.layer import TransformerLayer
from reference_impl.norm import LayerNorm

NORM_EPS = 1e-5  # PyTorch's default, which no config changes


@dataclass(frozen=True, kw_only=True)
class PostNormConfig:
    """What BART and Marian vary alike. Sizes are counts of components.

    pad_id: the token whose embedding is not trained. dropout: on the input and on what each part adds; attention_dropout: on
    probabilities; activation_dropout: inside the FFN; *_layer_dropout: the probability that a layer is left out in training.
    """

    vocab_size: int
    d_model: int
    n_encoder_layers: int
    n_decoder_layers: int
    n_encoder_heads: int
    n_decoder_heads: int
    d_encoder_ff: int
    d_decoder_ff: int
    max_positions: int
    activation: str
    scaled_embedding: bool
    tied_head: bool
    pad_id: int | None
    dropout: float
    attention_dropout: float
    activation_dropout: float
    encoder_layer_dropout: float
    decoder_layer_dropout: float

    @property
    def embedding_scale(self) -> float:
        """What an embedded token is multiplied with before its position is added."""
        return math.sqrt(self.d_model) if self.scaled_embedding else 1.0


class PostNormLayer(TransformerLayer):
    """z = LayerNorm(x + Dropout(MHA(x))); with `cross`, in a decoder, z2 = LayerNorm(z + Dropout(MHA(z, memory)));
    y = LayerNorm(z2 + Dropout(FFN(z2))).
    """

    def __init__(self, config: PostNormConfig, *, cross: bool):
        d_model, n_heads = config.d_model, config.n_decoder_heads if cross else config.n_encoder_heads

        def attention() -> MHA:
            return MHA(
                d_model=d_model,
                n_heads=n_heads,
                d_head=d_model // n_heads,
                scale=(d_model // n_heads) ** -0.5,
                dropout=config.attention_dropout,
            )

        super().__init__(
            attn=attention(),
            attn_norm=LayerNorm(d_model, NORM_EPS),
            cross=attention() if cross else None,
            cross_norm=LayerNorm(d_model, NORM_EPS) if cross else None,
            ffn=FFN(
                d_model=d_model,
                d_ff=config.d_decoder_ff if cross else config.d_encoder_ff,
                bias=True,
                activation=config.activation,
                dropout=config.activation_dropout,
            ),
            ffn_norm=LayerNorm(d_model, NORM_EPS),
            norm_first=False,
            dropout=config.dropout,
        )
