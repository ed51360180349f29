"""Marian, the translation models of Helsinki-NLP. R1, "Transformer" and "Sinusoidal PE"; Junczys-Dowmunt et al. 2018."""

from dataclasses import dataclass

from torch import nn

from reference_impl.encoder_decoder import EncoderDecoder, Stack
from reference_impl.post_norm import PostNormConfig, PostNormLayer
from reference_impl.sinusoidal import SinusoidalPositions


@dataclass(frozen=True, kw_only=True)
class MarianConfig(PostNormConfig):
    """vocab_size is the source's; the decoder has its own, unless the two share one embedding."""

    decoder_vocab_size: int
    shared_embedding: bool


class MarianModel(EncoderDecoder):
    """Both sides begin with Dropout(TokenEmbedding(ids) * sqrt(d_model) + PE(pos)), and no norm ends them: post-LN does."""

    def __init__(self, config: MarianConfig):
        source = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_id)
        own = nn.Embedding(config.decoder_vocab_size, config.d_model, padding_idx=config.pad_id)
        encoder = Stack(
            embed=source,
            scale=config.embedding_scale,
            positions=SinusoidalPositions(config.max_positions, config.d_model),
            layers=[PostNormLayer(config, cross=False) for _ in range(config.n_encoder_layers)],
            causal=False,
            dropout=config.dropout,
            layer_dropout=config.encoder_layer_dropout,
        )
        decoder = Stack(
            embed=source if config.shared_embedding else own,
            scale=config.embedding_scale,
            positions=SinusoidalPositions(config.max_positions, config.d_model),
            layers=[PostNormLayer(config, cross=True) for _ in range(config.n_decoder_layers)],
            causal=True,
            dropout=config.dropout,
            layer_dropout=config.decoder_layer_dropout,
        )
        super().__init__(encoder=encoder, decoder=decoder, tied_head=config.tied_head, logits_bias=True)
        self.config = config
