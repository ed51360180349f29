"""BART."""

from __future__ import annotations

from typing import Any

from parity_tests.families import beside, siblings
from parity_tests.families import seq2seq_deviations as sides
from parity_tests.families import transformer_deviations as mistakes
from parity_tests.families.seq2seq_units import BACKENDS, LAYERDROP, LAYERS_DRAWN, post_norm_units, reads
from parity_tests.fixtures import bart as tiny
from parity_tests.harness.record import FOUND_HERE, LOADING, PUBLISHED, Family, Known
from reference_impl import initialisation


def _offset_left_out(stack: Any) -> None:
    stack.positions.offset = 0


def _encoders_positions(model: Any) -> None:
    model.decoder.positions = model.encoder.positions


def _no_norm(stack: Any) -> None:
    stack.embed_norm.forward = lambda x: x


UNSCALED = ("base", "untied", "deep")

FAMILY = Family(
    name="bart",
    hf_class="BartForConditionalGeneration",
    variants=tiny.VARIANTS,
    initial=initialisation.both_sides,
    alone=(PUBLISHED,),
    reads=reads(start=2, shiftable=False),
    units=post_norm_units(embed_norm=True),
    backends=BACKENDS,
    holds=("b h t e", "b h t e", "b h m e", "b h m e"),
    inert={"is_decoder": "of a decoder by itself, BartForCausalLM"},
    beside=beside.two_sides("embed_norm"),
    siblings=siblings.without_head("Bart") | siblings.over_source("Bart") | siblings.decoder_alone("Bart", "deep"),
    known=(
        Known(
            name="without a tied head, each side has an embedding of its own",
            sites=("initial.drawn",),
            since="5.0.0",
            where=lambda config: not config.tied_head,
            link=FOUND_HERE,
            unexplained="what parameters begin as is no part of a forward",
        ),
        beside.no_tuple_by_config("5.0.0"),
        LAYERDROP,
        Known(
            name="without a tied head, embeddings that the file holds once stay random on both sides",
            smallest="`tie_word_embeddings=False`, save in 4.57.6, load",
            sites=(LOADING,),
            variants=("untied-once",),
            link="measured in 4.57.6, which writes such files, and in 5.24.0, which writes the embedding three times",
            unexplained="the embeddings are other random numbers each time",
        ),
        Known(
            name="without a tied head, the embeddings of both sides are trained apart, and read apart",
            sites=("trainable", "gradients", "step", "saved"),
            variants=("untied",),
            link="measured in 4.57.6 and 5.24.0",
            unexplained="the parameters are others: three embeddings instead of one",
        ),
    ),
    deviations=(
        sides.of_stack("the embedding is scaled unasked", "encoder.embedded", sides.scaled(lambda d: d**0.5), UNSCALED),
        sides.of_stack("the embedding is not scaled", "encoder.embedded", sides.scaled(lambda d: 1.0), ("scaled",)),
        sides.of_stack("the first two rows are positions 0 and 1", "encoder.embedded", _offset_left_out),
        sides.of_stack("no norm on the embeddings", "encoder.embed_norm", _no_norm),
        *sides.ABSOLUTE,
        *sides.MASKS,
        *sides.on("encoder", mistakes.layer_norm("embed_norm", configured=False)),
        *sides.on("encoder", mistakes.attention(queries="attn.probs", keys="attn.probs", biases="attn.probs", output="attn")),
        *sides.on(
            "encoder",
            mistakes.ffn(inner="ffn", output="ffn", erf=("base", "deep"), others=("scaled", "untied")),
        ),
        *sides.on("encoder", mistakes.LAYER),
        sides.Deviation(
            name="one table of positions for both sides", site="decoder.embedded", apply=_encoders_positions
        ),
        *sides.on("decoder", mistakes.over_memory(("base", "scaled", "untied", "deep"))),
        LAYERS_DRAWN,
        sides.LOGITS_BIAS,
        *sides.CACHES,
    ),
)
