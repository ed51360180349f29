"""Departures of encoder-decoders. Each concerns one side, so that it shows there first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from parity_tests.families.deviations import caches, masks
from parity_tests.harness.record import Deviation
from reference_impl.encoder_decoder import EncoderDecoder, Stack


def on(side: str, deviations: Iterable[Deviation], **sites: str) -> tuple[Deviation, ...]:
    """The same on one side only, "encoder" or "decoder". sites: where it shows other than by itself, by the old kind."""

    def moved(deviation: Deviation) -> Deviation:
        def apply(model: Any) -> None:
            deviation.apply(model.get_submodule(side))

        return replace(deviation, site=f"{side}.{sites.get(deviation.site, deviation.site)}", apply=apply)

    return tuple(moved(deviation) for deviation in deviations)


def of_stack(name: str, site: str, change: Callable[[Any], None], variants: tuple[str, ...] = ("*",)) -> Deviation:
    """A departure of one side as a whole; `site` begins with the side."""
    side = site.partition(".")[0]
    return Deviation(name=name, site=site, apply=lambda model: change(model.get_submodule(side)), variants=variants)


# --- masks ---


def _everything_visible(stack: Stack) -> None:
    stack.mask.forward = lambda input: torch.ones_like(input)


def _causal(stack: Stack) -> None:
    def causal(input: Tensor) -> Tensor:
        return input & torch.ones(input.shape[-1], input.shape[-1], dtype=torch.bool, device=input.device).tril()

    stack.mask.forward = causal


def _memory_visible(stack: Stack) -> None:
    stack.memory_mask.forward = lambda input: torch.ones_like(input)


MASKS = (
    of_stack("padding of the source is visible to the encoder", "encoder.mask", _everything_visible),
    of_stack("the encoder's mask is causal", "encoder.mask", _causal),
    *on("decoder", masks(Stack)),
    of_stack("padding of the source is visible to the decoder", "decoder.memory_mask", _memory_visible),
)

# --- what goes into the first layer ---


def scaled(by: Callable[[int], float]) -> Callable[[Any], None]:
    """The embedding multiplied with another number, made of d_model."""

    def change(stack: Stack) -> None:
        stack.scale = by(stack.embed.embedding_dim)

    return change


def positions_changed(change: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    """Other positions given to the table."""

    def apply(stack: Any) -> None:
        forward = stack.positions.forward
        stack.positions.forward = lambda positions: forward(change(positions))

    return apply


def by_token(stack: Any) -> None:
    """Positions are counted over the real tokens, as BERT's callers do, and not over slots."""
    forward = stack.forward

    def counted(ids: Tensor, *, real: Tensor | None = None, **given: Any) -> Tensor:
        if real is None:
            return forward(ids, real=real, **given)
        table, counts = stack.positions.forward, (real.long().cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        stack.positions.forward = lambda positions: torch.cat([table(row[None]) for row in counts])
        try:
            return forward(ids, real=real, **given)
        finally:
            stack.positions.forward = table

    stack.forward = counted


def own_embedding_from_encoder(model: Any) -> None:
    """The decoder's tokens are looked up in the encoder's table."""
    model.decoder.embed = model.encoder.embed


ABSOLUTE = (
    of_stack("positions are counted from 1", "encoder.embedded", positions_changed(lambda positions: positions + 1)),
    of_stack("positions count tokens instead of slots", "encoder.embedded", by_token),
)

# --- the whole ---


def _no_logits_bias(model: Any) -> None:
    model.logits_bias = None


def _forgetful(model: Any) -> None:
    """Positions restart after the cache, whichever way they come in."""
    stack: Any = model.decoder
    if stack.positions is not None:
        positions_changed(lambda positions: positions - positions[:, :1])(stack)
    if stack.relative is not None:
        forward = stack.relative.forward
        stack.relative.forward = lambda queries, keys: forward(queries - queries[0], keys)


LOGITS_BIAS = Deviation(name="bias of the logits left out", site="logits", apply=_no_logits_bias)

CACHES = (
    Deviation(name="positions restart after the cache", site="cache", apply=_forgetful),
    *(deviation for deviation in caches(EncoderDecoder) if deviation.name != "positions restart after the cache"),
)
