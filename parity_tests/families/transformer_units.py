"""How blocks of `TransformerLayer` are fed and read, in decoders that transformers builds of one stack of layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from parity_tests.families.units import NO_PROBABILITIES, hidden, visible
from parity_tests.harness.record import Arguments, Call, Site
from reference_impl.cache import LayerCache


def passed(call: Call, name: str) -> Any:
    """An argument by its name, however it was passed; None when it was not."""
    bound = inspect.signature(call.module.forward).bind(*call.args, **call.kwargs).arguments
    return {**bound, **bound.get("kwargs", {})}.get(name)


def own_mask(call: Call, seen: Mapping[str, Tensor]) -> Tensor:
    """What the twin got, or where it got none, what the reference itself used."""
    mask = visible(passed(call, "attention_mask"))
    return seen["mask"] if mask is None else mask


def memory_and_mask(call: Call, mask_name: str) -> tuple[Tensor | None, Tensor | None]:
    """An encoder's output (b, m, d) and who sees what of it: everything where the twin got no mask."""
    memory, mask = passed(call, "encoder_hidden_states"), visible(passed(call, mask_name))
    if memory is not None and mask is None:
        mask = torch.ones(1, 1, 1, memory.shape[1], dtype=torch.bool, device=memory.device)
    return memory, mask


def attention_input(call: Call, seen: Mapping[str, Tensor]) -> Arguments:
    """Arguments of self-attention: hidden states, mask, an empty cache."""
    return Arguments(hidden(call), own_mask(call, seen), cache=LayerCache())


def cross_input(mask_name: str) -> Callable[[Call, Mapping[str, Tensor]], Arguments]:
    """Arguments of attention to a memory, whose mask transformers calls so."""

    def feed(call: Call, seen: Mapping[str, Tensor]) -> Arguments:
        memory, mask = memory_and_mask(call, mask_name)
        return Arguments(hidden(call), mask, memory=memory, cache=LayerCache())

    return feed


def layer_input(call: Call, seen: Mapping[str, Tensor]) -> Arguments:
    """Arguments of a whole layer: hidden states, mask, the memory and its mask where there are any, an empty cache."""
    memory, mask = memory_and_mask(call, "encoder_attention_mask")
    cache = LayerCache(LayerCache())
    return Arguments(hidden(call), own_mask(call, seen), memory=memory, memory_visible=mask, cache=cache)


def held(name: str, place: int, axes: str) -> Site:
    """Keys or values: this one of the tensors that the cache holds of the layer."""
    return Site(name, axes, lambda c: c.cached[place] if c.cached else None)


def probs(axes: str) -> Site:
    """The probabilities, which attention returns beside its output, or not."""
    return Site("probs", axes, lambda c: c.output[1] if len(c.output) > 1 else None, absent=NO_PROBABILITIES)
