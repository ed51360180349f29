"""The same tokens read in pieces over a cache, on both sides."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from parity_tests.harness import hf, ours
from parity_tests.harness.batches import Batch
from parity_tests.harness.shapes import unchecked

SCHEDULES = {"steps": (14, *[1] * 5), "chunks": (8, 6, 5), "pass": (19,)}
"""How many tokens go in at each call: a prompt and single steps; several at once on a cache; everything at once."""


FARTHEST = 64
"""An edge behind more tokens than this is not gone to."""


def edges_of(config: Any) -> dict[str, int]:
    """Where a config says that something changes with the length of a text: the tokens that a window shows, and those that a
    model was trained on before its rotary table was stretched.
    """
    scaling = getattr(getattr(config, "rope", None), "scaling", None)
    lengths = (getattr(scaling, name, None) for name in ("original_positions", "max_positions"))
    found = {"window": getattr(config, "window", None), "length": next(filter(None, lengths), None)}
    return {name: edge for name, edge in found.items() if edge is not None and edge <= FARTHEST}


def grows(config: Any) -> bool:
    """Whether a rotary table is another one past its edge, so that a text read in pieces is not what one pass makes of it."""
    scaling, edge = config.rope.scaling, edges_of(config).get("length")
    tables = [scaling.frequencies(config.rope.theta, config.rope.width, n) for n in (edge, edge + 1)] if edge else []
    return bool(tables) and not torch.equal(*tables)


@cache
def at_edges(config: Any) -> dict[str, tuple[int, ...]]:
    """Schedules from one side of an edge to the other: one token at a time from the first on; a prompt that ends one below, at
    and one above it, and single steps; several tokens at once across it, and several behind it. Of a length past which the
    rotary table stays as it is, less.
    """
    found = {}
    for name, edge in edges_of(config).items():
        total = max(edge + 4, 12)
        begins = {"ones": (), "below": (edge - 1,), "at": (edge,), "above": (edge + 1,)}
        for kind, begin in begins.items():
            if name == "length" and kind != "at" and not grows(config):
                continue
            sizes = (*filter(None, begin), *[1] * (total - sum(begin)))
            if sizes not in found.values():  # around a window of one token, some are the same
                found[f"{name}.{kind}"] = sizes
        across = tuple(filter(None, (max(edge - 2, 0), 4)))
        found[f"{name}.across"] = (*across, total - sum(across))
    return found


def fitting(sizes: tuple[int, ...], length: int) -> tuple[int, ...]:
    """A schedule for so many tokens: its largest pieces get smaller, and where all are of one token there are fewer."""
    found = list(sizes)
    while sum(found) > length:
        largest = max(range(len(found)), key=found.__getitem__)
        found[largest] -= 1
        found = [size for size in found if size]
    return tuple(found)


PIECED = ("ids", "positions", "types")
"""Inputs that go in piece by piece; the others are given at every call, whole."""


def pieces(batch: Batch, sizes: tuple[int, ...]) -> list[dict[str, Tensor]]:
    """What goes in at each call, and what is real of everything read by then."""
    start, found = 0, []
    for size in sizes:
        end = start + size
        piece = {name: x[:, start:end] if name in PIECED else x for name, x in batch.inputs.items()}
        found.append({name: x[:, :end] if name == "real" else x for name, x in piece.items()})
        start = end
    return found


def read_ours(model: Any, batch: Batch, sizes: tuple[int, ...]) -> tuple[Tensor, Any]:
    """The reference's logits (b, s, v) for all tokens, and its cache."""
    cache = ours.new_cache(model)
    with torch.no_grad(), unchecked():
        logits = [ours.read(model, piece, cache) for piece in pieces(batch, fitting(sizes, batch.length))]
    return torch.cat(logits, 1), cache


def read_theirs(
    model: nn.Module, precision: str, batch: Batch, sizes: tuple[int, ...], *, static: bool = False
) -> tuple[Tensor, Any]:
    """transformers' logits (b, s, v) for all tokens, and its cache: the one it makes by itself, or a static one."""
    hf.forget(model)
    positions = getattr(model.config, "max_position_embeddings", None) or batch.length + 3
    room = max(batch.length, min(batch.length + 3, positions))  # for more tokens than these, but for none without a position
    cache = hf.static_cache(model, batch.rows, room) if static else None
    logits = []
    for piece in pieces(batch, fitting(sizes, batch.length)):
        output = hf.run(model, precision, piece, cache=cache)
        cache = hf.cache_of(output)
        if output.logits.shape[:2] != piece["ids"].shape:
            given, found = tuple(piece["ids"].shape), tuple(output.logits.shape)
            raise hf.Crashed(f"transformers gives logits of shape {found} for tokens of shape {given}")
        logits.append(output.logits)
    return torch.cat(logits, 1), cache
