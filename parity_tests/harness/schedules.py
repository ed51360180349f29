"""The same tokens read in pieces over a cache, on both sides."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from parity_tests.harness import hf
from parity_tests.harness.batches import Batch, padded, positions_of, tokens
from parity_tests.harness.shapes import unchecked

SCHEDULES = {"steps": (11, *[1] * 8), "chunks": (8, 6, 5), "pass": (19,)}
"""How many tokens go in at each call: a prompt and single steps; several at once on a cache; everything at once."""


def cache_batches(vocab_size: int, device: str) -> list[Batch]:
    """Nineteen tokens, bare and padded on the left, short enough for every table that grows past a length."""
    bare = tokens("cache", (2, 19), vocab_size)
    ids = tokens("cache-left", (3, 19), vocab_size)
    real = padded(ids, [(0, 0), (4, 0), (9, 0)])
    batches = [Batch(name="bare", ids=bare), Batch(name="left", ids=ids, real=real, positions=positions_of(real))]
    return [batch.to(device) for batch in batches]


def pieces(batch: Batch, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """What goes in at each call, and what is real of everything read by then."""
    start, found = 0, []
    for size in sizes:
        end = start + size
        found.append(
            {
                "ids": batch.ids[:, start:end],
                "positions": None if batch.positions is None else batch.positions[:, start:end],
                "real": None if batch.real is None else batch.real[:, :end],
            }
        )
        start = end
    return found


def read_ours(model: Any, batch: Batch, sizes: tuple[int, ...]) -> tuple[Tensor, Any]:
    """The reference's logits (b, s, v) for all tokens, and its cache."""
    cache = model.new_cache()
    with torch.no_grad(), unchecked():
        logits = [model(p["ids"], positions=p["positions"], real=p["real"], cache=cache) for p in pieces(batch, sizes)]
    return torch.cat(logits, 1), cache


def read_theirs(
    model: nn.Module, precision: str, batch: Batch, sizes: tuple[int, ...], *, static: bool = False
) -> tuple[Tensor, Any]:
    """transformers' logits (b, s, v) for all tokens, and its cache: the one it makes by itself, or a static one."""
    hf.forget(model)
    rows, length = batch.ids.shape
    cache = hf.static_cache(model, rows, length + 3) if static else None
    logits = []
    for piece in pieces(batch, sizes):
        output = hf.run(model, precision, piece.pop("ids"), **piece, cache=cache)
        cache = hf.cache_of(output)
        logits.append(output.logits)
    return torch.cat(logits, 1), cache
