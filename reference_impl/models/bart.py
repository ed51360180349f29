"""BART: a Transformer trained to mend text. R2, "3.2 Encoder/Decoder Only"; Lewis et al. 2019."""

from dataclasses import dataclass

from torch import nn

from reference_impl.embedding import LearnedPositions
from reference_impl.encoder_decoder import EncoderDecoder, Stack
from reference_impl.norm import LayerNorm
from reference_impl.post_norm import NORM_EPS, PostNormConfig, PostNormLayer

OFFSET = 2  # rows before that of position 0: fairseq counted from behind the padding token's number, 1


@dataclass(frozen=True, kw_only=True)
class BartConfig(PostNormConfig):
    """One vocabulary, and one embedding, for both sides."""


class BartModel(EncoderDecoder):
    """Both sides begin with Dropout(LayerNorm(TokenEmbedding(ids) + PositionEmbedding(pos))), each with its own positions."""

    def __init__(self, config: BartConfig):
        embed = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_id)
        encoder = Stack(
            embed=embed,
            scale=config.embedding_scale,
            positions=LearnedPositions(config.max_positions, config.d_model, offset=OFFSET),
            embed_norm=LayerNorm(config.d_model, NORM_EPS),
            layers=[PostNormLayer(config, cross=False) for _ in range(config.n_encoder_layers)],
            causal=False,
            dropout=config.dropout,
            layer_dropout=config.encoder_layer_dropout,
        )
        decoder = Stack(
            embed=embed,
            scale=config.embedding_scale,
            positions=LearnedPositions(config.max_positions, config.d_model, offset=OFFSET),
            embed_norm=LayerNorm(config.d_model, NORM_EPS),
            layers=[PostNormLayer(config, cross=True) for _ in range(config.n_decoder_layers)],
            causal=True,
            dropout=config.dropout,
            layer_dropout=config.decoder_layer_dropout,
        )
        super().__init__(encoder=encoder, decoder=decoder, tied_head=config.tied_head, logits_bias=True)
        self.config = config
