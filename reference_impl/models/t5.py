"""T5: relative positions, RMSNorm, no biases, scores that are not scaled.

R2, "3.2 Encoder/Decoder Only"; Raffel et al. 2020; Shazeer 2020.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from reference_impl.attention import MHA
from reference_impl.encoder_decoder import EncoderDecoder, Stack
from reference_impl.ffn import FFN, GatedFFN
from reference_impl.layer import TransformerLayer
from reference_impl.norm import RMSNorm


@dataclass(frozen=True, kw_only=True)
class T5Config:
    """T5 1.0 and 1.1, Flan-T5. Sizes are counts of components.

    n_buckets, max_distance: see `RelativeBias`. gated_ffn: of 1.1. scaled_head: the head reads y / sqrt(d_model), which goes
    with a tied one. dropout: everywhere.
    """

    vocab_size: int
    d_model: int
    n_encoder_layers: int
    n_decoder_layers: int
    n_heads: int
    d_head: int
    d_ff: int
    n_buckets: int
    max_distance: int
    norm_eps: float
    feed_forward: str
    tied_head: bool
    scaled_head: bool
    dropout: float

    @property
    def gated(self) -> bool:
        """Whether the network is a GatedFFN: T5 1.1 has one, 1.0 an FFN."""
        return self.feed_forward.startswith("gated-")

    @property
    def activation(self) -> str:
        """The network's activation."""
        return self.feed_forward.removeprefix("gated-")


class RelativeBias(nn.Module):
    """What a head adds to a score for the distance from query to key: one trained number a bucket of distances.

    Half of the buckets hold one distance each, the others grow with its logarithm up to `max_distance`; all beyond share the
    last. `both_ways`: half of all buckets are for keys behind the query, in an encoder; else those share distance 0's.
    Raffel et al. 2020, 2.1.
    """

    def __init__(self, *, n_buckets: int, max_distance: int, n_heads: int, both_ways: bool):
        super().__init__()
        self.n_buckets, self.max_distance, self.both_ways = n_buckets, max_distance, both_ways
        self.weight = nn.Parameter(torch.empty(n_buckets, n_heads))

    def bucket(self, ahead: Int[Tensor, "s t"]) -> Int[Tensor, "s t"]:
        """The bucket of a key that is so many tokens ahead of its query."""
        n_buckets = self.n_buckets // 2 if self.both_ways else self.n_buckets
        distance = ahead.abs() if self.both_ways else (-ahead).clamp(min=0)
        n_exact = n_buckets // 2
        octaves = torch.log(distance.float() / n_exact) / math.log(self.max_distance / n_exact)  # 0 to 1; float32 decides ties
        coarse = n_exact + (octaves.clamp(min=0) * (n_buckets - n_exact)).long()
        bucket = torch.where(distance < n_exact, distance, coarse.clamp(max=n_buckets - 1))
        return bucket + n_buckets * (ahead > 0) if self.both_ways else bucket

    def forward(self, query_slots: Int[Tensor, " s"], key_slots: Int[Tensor, " t"]) -> Float[Tensor, "1 h s t"]:
        ahead = key_slots[None, :] - query_slots[:, None]  # as (s, t)
        return self.weight[self.bucket(ahead)].permute(2, 0, 1)[None]


class T5Layer(TransformerLayer):
    """z = x + MHA(RMSNorm(x)); in a decoder z2 = z + MHA(RMSNorm(z), memory); y = z2 + FFN(RMSNorm(z2))."""

    def __init__(self, config: T5Config, *, cross: bool):
        def attention() -> MHA:
            return MHA(  # scale 1: the initial weights of q are smaller instead
                d_model=config.d_model,
                n_heads=config.n_heads,
                d_head=config.d_head,
                scale=1.0,
                bias=False,
                dropout=config.dropout,
            )

        network = GatedFFN if config.gated else FFN
        super().__init__(
            attn=attention(),
            attn_norm=RMSNorm(config.d_model, config.norm_eps),
            cross=attention() if cross else None,
            cross_norm=RMSNorm(config.d_model, config.norm_eps) if cross else None,
            ffn=network(
                d_model=config.d_model,
                d_ff=config.d_ff,
                bias=False,
                activation=config.activation,
                dropout=config.dropout,
            ),
            ffn_norm=RMSNorm(config.d_model, config.norm_eps),
            norm_first=True,
            dropout=config.dropout,
        )


class T5Model(EncoderDecoder):
    """Both sides: Dropout(RMSNorm(T5Layer^N(Dropout(TokenEmbedding(ids))))), one relative bias a side, for all its layers."""

    def __init__(self, config: T5Config):
        embed = nn.Embedding(config.vocab_size, config.d_model)

        def stack(n_layers: int, *, causal: bool) -> Stack:
            return Stack(
                embed=embed,
                scale=1.0,
                relative=RelativeBias(
                    n_buckets=config.n_buckets,
                    max_distance=config.max_distance,
                    n_heads=config.n_heads,
                    both_ways=not causal,
                ),
                layers=[T5Layer(config, cross=causal) for _ in range(n_layers)],
                norm=RMSNorm(config.d_model, config.norm_eps),
                norm_dropout=config.dropout,
                causal=causal,
                dropout=config.dropout,
            )

        super().__init__(
            encoder=stack(config.n_encoder_layers, causal=False),
            decoder=stack(config.n_decoder_layers, causal=True),
            tied_head=config.tied_head,
            head_scale=config.d_model**-0.5 if config.scaled_head else 1.0,
        )
        self.config = config
