"""T5 1.0 and 1.1."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from parity_tests.families import beside, siblings
from parity_tests.families import deviations as shared
from parity_tests.families import seq2seq_deviations as sides
from parity_tests.families import transformer_deviations as mistakes
from parity_tests.families.seq2seq_units import attention, begin, cross, end, layer, part, reads
from parity_tests.fixtures import t5 as tiny
from parity_tests.harness.record import (
    CONFIG_ALONE,
    FOUND_HERE,
    PUBLISHED,
    Arguments,
    Backend,
    Call,
    Deviation,
    Family,
    Known,
    Site,
    Unit,
    in_layers,
)
from reference_impl import initialisation
from reference_impl.attention import MHA
from reference_impl.models.t5 import RelativeBias, T5Config

WITH_MASK = "this release returns relative positions and mask as one sum"

# --- units ---


def _positions(call: Call) -> Tensor | None:
    """The first layer's relative positions (1, h, s, t), by themselves."""
    given = call.output[1]
    return None if given.shape[0] > 1 or given.min() < -1e4 else given


def _slots(call: Call, seen: Mapping[str, Tensor]) -> Arguments:
    slots = torch.arange(call.tensor.shape[1], device=call.tensor.device)
    return Arguments(slots, slots)


def units(config: T5Config) -> list[Unit]:
    """Every unit of a model with this config."""
    found = []
    for side, n_layers in (("encoder", config.n_encoder_layers), ("decoder", config.n_decoder_layers)):
        there, here = f"{side}.block.{{layer}}.layer.", "layers.{layer}."
        network = 1 if side == "encoder" else 2
        inside = [
            part(side, here + "attn_norm", there + "0.layer_norm"),
            attention(side, there + "0.SelfAttention"),
        ]
        if side == "decoder":
            inside.append(part(side, here + "cross_norm", there + "1.layer_norm"))
            inside.append(cross(there + "1.EncDecAttention"))
        inside += [
            part(side, here + "ffn_norm", there + f"{network}.layer_norm"),
            part(side, here + "ffn", there + f"{network}.DenseReluDense"),
            layer(side, f"{side}.block.{{layer}}"),
        ]
        relative = Unit(
            name=f"{side}.relative",
            hf=f"{side}.block.0.layer.0.SelfAttention",
            level="block",
            feed=_slots,
            sites=(Site("", "1 h q t", _positions, absent=WITH_MASK),),
        )
        found += [*begin(side, f"{side}.block.0"), relative]
        found += [*in_layers(inside, config, n_layers), part(side, "norm", f"{side}.final_layer_norm")]
    return [*found, *end()]


# --- deviations ---


def _buckets(**changes: Any) -> Callable[[Any], None]:
    def change(stack: Any) -> None:
        for name, value in changes.items():
            setattr(stack.relative, name, value)

    return change


def _other_way(stack: Any) -> None:
    bucket = stack.relative.bucket
    stack.relative.bucket = lambda ahead: bucket(-ahead)


def _linear(stack: Any) -> None:
    """Buckets of equal size instead of logarithmic ones."""
    table: RelativeBias = stack.relative

    def bucket(ahead: Tensor) -> Tensor:
        n = table.n_buckets // 2
        near = (ahead.abs() * n // table.max_distance).clamp(max=n - 1)
        return near + n * (ahead > 0)

    table.bucket = bucket


def _first_layer_only(stack: Any) -> None:
    def without(module: MHA) -> None:
        forward = module.forward
        module.forward = lambda x, visible, *, bias=None, **given: forward(x, visible, **given)

    for one in stack.layers[1:]:
        without(one.attn)


def _by_twos(stack: Any) -> None:
    """Distances grow by twos from bucket to bucket, whatever max_distance is."""
    table: RelativeBias = stack.relative

    def bucket(ahead: Tensor) -> Tensor:
        n = table.n_buckets // 2
        exact, distance = n // 2, ahead.abs()
        coarse = exact + (torch.log(distance.clamp(min=1).float() / exact) / math.log(2.0)).clamp(min=0).long()
        return torch.where(distance < exact, distance, coarse.clamp(max=n - 1)) + n * (ahead > 0)

    table.bucket = bucket


def _scaled_scores(module: MHA) -> None:
    module.scale = (module.q_proj.out_features // module.n_heads) ** -0.5


def _no_norm(stack: Any) -> None:
    stack.norm.forward = lambda x: x


def _head_scale(scale: Callable[[T5Config], float]) -> Callable[[Any], None]:
    return lambda model: setattr(model, "head_scale", scale(model.config))


def _tied(model: Any) -> None:
    model.lm_head.weight = nn.Parameter(model.decoder.embed.weight.detach(), requires_grad=False)


TIED, UNTIED = ("relu", "even", "near", "far"), ("gated",)
NEAR = ("relu", "gated", "even", "near")
"""Those in whose inputs all buckets occur."""
SEVERAL = ("relu", "gated", "even", "far")
"""Those with more than one layer in the encoder."""


def _relative(name: str, change: Callable[[Any], None], variants: tuple[str, ...] = ("*",)) -> Deviation:
    return sides.of_stack(name, "encoder.relative", change, variants)


RELATIVE = (
    _relative("distance from key to query instead", _other_way),
    _relative("the encoder's buckets are one-way", _buckets(both_ways=False)),
    _relative("max_distance is 128 whatever the config says", _buckets(max_distance=128), NEAR),
    _relative("buckets of equal size", _linear),
    _relative("buckets grow by twos", _by_twos, ("relu", "gated", "even")),
    sides.of_stack("relative positions in the first layer only", "encoder.attn.probs", _first_layer_only, SEVERAL),
    sides.of_stack("the decoder's buckets are two-way", "decoder.relative", _buckets(both_ways=True)),
)

FAMILY = Family(
    name="t5",
    hf_class="T5ForConditionalGeneration",
    variants=tiny.VARIANTS,
    initial=initialisation.t5,
    alone=(PUBLISHED,),
    reads=reads(start=0, shiftable=True),
    units=units,
    backends=(
        Backend("eager", precisions=("f64", "f32", "bf16")),  # float16 leaves wo, and all that follows, in float32
        Backend("sdpa", precisions=("f64", "f32")),
    ),
    holds=("b h t e", "b h t e", "b h m e", "b h m e"),
    inert={
        "is_decoder": "of a decoder by itself",
        "tie_word_embeddings": "always true in transformers 5, where scale_decoder_outputs keeps what the file said",
    },
    beside=beside.two_sides("embedded", "norm"),
    siblings=siblings.without_head("T5") | siblings.over_source("T5", "transformer") | siblings.encoder_alone("T5"),
    known=(
        Known(
            name="a model that is not tied begins tied: a T5Config knows no other way",
            smallest="`T5ForConditionalGeneration(T5Config(tie_word_embeddings=False))`: `lm_head.weight is shared.weight`",
            sites=("initial.drawn",),
            since="5.0.0",
            where=lambda config: not config.tied_head,
            link=FOUND_HERE,
            unexplained="what parameters begin as is no part of a forward",
        ),
        Known(
            name="every config says that the head is tied, and scale_decoder_outputs keeps what the file said",
            smallest="`T5Config(tie_word_embeddings=False).tie_word_embeddings`",
            sites=("config.tied_head",),
            since="5.0.0",
            where=lambda config: not config.tied_head,
            link=FOUND_HERE,
            unexplained=CONFIG_ALONE,
        ),
        beside.no_tuple_by_config("5.0.0"),
        *(
            Known(
                name="a decoder deeper than the encoder cannot generate: its cache has the encoder's layers",
                smallest="`num_layers=2, num_decoder_layers=3`",
                sites=sites,
                since=since,
                until=until,
                where=lambda config: config.n_decoder_layers > config.n_encoder_layers,
                link="measured",
                raises="IndexError",
            )
            for sites, since, until in (
                (("static.steps", "static.chunks"), "0", None),
                (("greedy", "left-padded", "eos"), "4.54.0", "5.0.0"),
                (("greedy", "left-padded", "eos"), "5.1.0", None),
            )
        ),
        Known(
            name="wo is loaded in float32, and its output stays so",
            sites=("encoder.ffn", "decoder.ffn"),
            since="5.0.0",
            until="5.1.0",
            precisions=("bf16",),
            link="measured: 5.1.0 loads it in bfloat16",
            unexplained="it is one of rounding, which no deviation in float64 shows",
        ),
        Known(
            name="an untied head is scaled",
            sites=("logits", "lm_head"),
            since="5.0.0",
            until="5.1.0",
            where=lambda config: not config.tied_head,
            link="measured: 5.1.0 does not",
            explained="an untied head is scaled",
        ),
    ),
    deviations=(
        sides.of_stack("the embedding is scaled", "encoder.embedded", sides.scaled(lambda d: d**0.5)),
        *sides.MASKS,
        *sides.on("encoder", shared.RMS_NORM),
        *RELATIVE,
        sides.of_stack("scores are scaled", "encoder.attn.probs", shared.each(MHA, _scaled_scores)),
        *sides.on("encoder", shared.gated_ffn(("gated",))),
        *sides.on("encoder", mistakes.LAYER),
        *sides.on("decoder", mistakes.over_memory(("*",))),
        sides.of_stack("last norm of the encoder left out", "encoder.norm", _no_norm),
        sides.of_stack("last norm of the decoder left out", "decoder.norm", _no_norm),
        Deviation(name="a tied head is not scaled", site="logits", apply=_head_scale(lambda c: 1.0), variants=TIED),
        Deviation(
            name="an untied head is scaled", site="logits", apply=_head_scale(lambda c: c.d_model**-0.5), variants=UNTIED
        ),
        Deviation(name="an untied head is tied", site="lm_head", apply=_tied, variants=UNTIED),
        *sides.CACHES,
    ),
)
