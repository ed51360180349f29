"""Marian, the translation models of Helsinki-NLP."""

from __future__ import annotations

from typing import Any

from torch import nn

from parity_tests.families import beside, siblings
from parity_tests.families import seq2seq_deviations as sides
from parity_tests.families import transformer_deviations as mistakes
from parity_tests.families.seq2seq_units import BACKENDS, LAYERDROP, LAYERS_DRAWN, post_norm_units, reads
from parity_tests.fixtures import marian as tiny
from parity_tests.harness.record import LOADING, PUBLISHED, Deviation, Family, Known
from reference_impl import initialisation
from reference_impl.sinusoidal import sinusoidal_interleaved

SCALED = ("base", "apart*", "odd")


def _interleaved(stack: Any) -> None:
    stack.positions.forward = lambda positions: sinusoidal_interleaved(positions, stack.embed.embedding_dim).float()


def _cosines_first(stack: Any) -> None:
    forward = stack.positions.forward
    stack.positions.forward = lambda positions: forward(positions).roll(stack.embed.embedding_dim // 2, -1)


def _tied(model: Any) -> None:
    model.lm_head.weight = nn.Parameter(model.decoder.embed.weight.detach(), requires_grad=False)


def _heads_of_the_encoder(model: Any) -> None:
    for layer in model.decoder.layers:
        layer.attn.n_heads = layer.cross.n_heads = model.config.n_encoder_heads


FAMILY = Family(
    name="marian",
    hf_class="MarianMTModel",
    variants=tiny.VARIANTS,
    initial=initialisation.both_sides,
    alone=(PUBLISHED,),
    reads=reads(start=7, shiftable=False),
    units=post_norm_units(embed_norm=False),
    backends=BACKENDS,
    holds=("b h t e", "b h t e", "b h m e", "b h m e"),
    inert={"is_decoder": "of a decoder by itself, MarianForCausalLM"},
    beside=beside.two_sides("embedded"),
    siblings=siblings.without_head("Marian") | siblings.decoder_alone("Marian"),
    known=(
        beside.no_tuple_by_config("5.0.0"),
        LAYERDROP,
        Known(
            name="the table of sines is trained once it was loaded, and not saved",
            smallest="`from_pretrained`, a step of SGD, save, load",
            sites=("trainable",),
            since="5.0.0",
            link="measured in 5.24.0: requires_grad is False from a config and True from from_pretrained; in 4.57.6 False",
            unexplained="a fixed table is no parameter, and the reference has no gradient for it",
        ),
        Known(
            name="the encoder does not scale embeddings given for ids, as the decoder does",
            smallest="`scale_embedding=True`, `inputs_embeds`",
            sites=("inputs_embeds",),
            where=lambda config: config.scaled_embedding,
            link="measured in 4.57.6 and 5.24.0",
            explained="the embedding is not scaled",
            local=True,
        ),
        Known(
            name="a head that is tied to the decoder's embedding is tied to the encoder's",
            sites=("lm_head",),
            since="5.0.0",
            until="5.4.0",
            variants=("apart",),
            link="https://github.com/huggingface/transformers/issues/45005",
            unexplained="the head is a tensor that this model has no head of the size of",
        ),
        Known(
            name="a decoder with a vocabulary of its own cannot be loaded",
            sites=(LOADING,),
            until="5.0.0",
            where=lambda config: config.decoder_vocab_size != config.vocab_size,
            link="measured: the decoder's embedding is made with the source's vocabulary",
            raises="RuntimeError",
        ),
    ),
    deviations=(
        LAYERS_DRAWN,
        sides.of_stack("the embedding is not scaled", "encoder.embedded", sides.scaled(lambda d: 1.0), SCALED),
        sides.of_stack("the embedding is scaled unasked", "encoder.embedded", sides.scaled(lambda d: d**0.5), ("unscaled",)),
        sides.of_stack("sines and cosines interleaved", "encoder.embedded", _interleaved),
        sides.of_stack("cosines before sines", "encoder.embedded", _cosines_first),
        *sides.ABSOLUTE,
        *sides.MASKS,
        *sides.on("encoder", mistakes.attention(queries="attn.probs", keys="attn.probs", biases="attn.probs", output="attn")),
        *sides.on("encoder", mistakes.layer_norm("attn_norm", configured=False)[1:]),  # eps is too small here to matter
        *sides.on(
            "encoder",
            mistakes.ffn(inner="ffn", output="ffn", erf=("unscaled",), others=("base", "apart*", "odd")),
        ),
        *sides.on("encoder", mistakes.LAYER),
        Deviation(
            name="the decoder splits its heads as the encoder does",
            site="decoder.attn.keys",
            apply=_heads_of_the_encoder,
            variants=("base", "apart-untied"),
        ),
        *sides.on("decoder", mistakes.over_memory(("*",))),
        Deviation(
            name="the decoder reads with the encoder's embedding",
            site="decoder.embedded",
            apply=sides.own_embedding_from_encoder,
            variants=("apart-untied",),
        ),
        Deviation(name="an untied head is tied", site="lm_head", apply=_tied, variants=("apart-untied",)),
        sides.LOGITS_BIAS,
        *sides.CACHES,
    ),
)
