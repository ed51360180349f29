"""The inputs of every comparison, deterministic and without an RNG: what a kind of model reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from parity_tests.fixtures.values import integers

Pads = list[tuple[int, int]]
"""How many padding tokens a row begins and ends with."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """inputs: the reference's arguments by name. Token ids `ids` (b, s), their `positions` (b, s) and token `types` (b, s);
    `real` (b, s), False for padding; an encoder's `source` (b, m) or output `memory` (b, m, d) with `source_real` or
    `memory_real`; `images` (b, c, y, x). What is not there is given to neither side.
    """

    name: str
    inputs: Mapping[str, Tensor]

    def __getattr__(self, name: str) -> Tensor | None:
        """An input by its name; None when it is not given."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self.inputs.get(name)

    @property
    def rows(self) -> int:
        return len(next(iter(self.inputs.values())))

    @property
    def length(self) -> int:
        """Tokens read one by one."""
        return self.inputs["ids"].shape[1]

    @cached_property
    def keep(self) -> dict[str, Tensor]:
        """By axis, the tokens whose results are defined, and so compared: (b, s) and (b, m)."""
        found = {}
        for axis, name, real in (("s", "ids", "real"), ("m", "source", "source_real"), ("m", "memory", "memory_real")):
            if name in self.inputs:
                x = self.inputs[name]
                found[axis] = self.inputs.get(real, torch.ones(x.shape[:2], dtype=torch.bool, device=x.device))
        return found

    def kept(self, x: Tensor) -> Tensor:
        """The rows of real tokens of (b, s, ...)."""
        return x[self.keep["s"]] if "s" in self.keep else x

    def to(self, device: str) -> Batch:
        return Batch(name=self.name, inputs={name: x.to(device) for name, x in self.inputs.items()})


def tokens(name: str, shape: tuple[int, int], vocab_size: int) -> Tensor:
    """Token ids (b, s) from the name alone."""
    return (integers(f"ids.{name}", shape, 24).long() + 2**23) % vocab_size


def positions_of(real: Tensor) -> Tensor:
    """Real tokens counted from 0 in each row."""
    return (real.long().cumsum(-1) - 1).clamp(min=0)


def padded(ids: Tensor, pads: Pads) -> Tensor:
    """`real` (b, s) for rows that begin and end with so many padding tokens."""
    slot = torch.arange(ids.shape[1])
    return torch.stack([(slot >= left) & (slot < ids.shape[1] - right) for left, right in pads])


def shrunk(pads: Pads, length: int, of: int) -> Pads:
    """Pads of rows of `of` tokens in rows that have only `length` of these, where some token stays real."""
    return [(left * length // of, right * length // of) for left, right in pads]


@dataclass(frozen=True, kw_only=True)
class Reads:
    """What a model reads, and so what its batches hold.

    causal: token by token, over a cache if one likes, so that it generates. padding: the sides that padding may be on.
    positions: whether they can be given; reach: there are that many, where they come from a table, so that no text is longer,
    and no source. types: kinds of token, 0 for none. memory: width of the encoder's output that it attends to. source:
    vocabulary of the text that an encoder of its own reads, and start: the token that its answer begins with. shiftable:
    whether a row padded on the left is the row alone; not where positions are slots.
    """

    vocab_size: int
    causal: bool = True
    padding: tuple[str, ...] = ("left", "right")
    positions: bool = True
    reach: int | None = None
    types: int = 0
    memory: int = 0
    source: int = 0
    start: int = 0
    shiftable: bool = True

    def within(self, length: int) -> int:
        """As many tokens of a text as there are positions for."""
        return length if self.reach is None else min(length, self.reach)

    def room(self, length: int, n_new: int) -> tuple[int, int]:
        """A prompt, and how many tokens it is continued by, of which all but the last are read: both shorter where these would
        pass the last position. With a source, the prompt is that, and what is written begins with one token.
        """
        if self.reach is None or self.source:
            return self.within(length), self.within(n_new)
        if length + n_new - 1 > self.reach:
            n_new = min(n_new, max(self.reach // 2, 1))
        return min(length, self.reach - n_new + 1), n_new

    def batch(self, name: str, shape: tuple[int, int], pads: Pads | None = None, positions: Tensor | None = None) -> Batch:
        """Tokens (b, s), padded so, and whatever else this model reads beside them."""
        ids = tokens(name, shape, self.vocab_size)
        found = {"ids": ids}
        if pads is not None and self.padding:
            found["real"] = padded(ids, pads)
            positions = positions_of(found["real"]) if positions is None else positions
        if self.positions and positions is not None:
            found["positions"] = positions if self.reach is None else positions % self.reach
        if self.types:
            found["types"] = tokens(f"{name}.types", shape, self.types)
        return Batch(name=name, inputs=found | self._beside(name, shape[0], pads is not None))

    def _beside(self, name: str, rows: int, some_padded: bool) -> dict[str, Tensor]:
        """The encoder's side: another length, padded elsewhere."""
        found, length = {}, self.within(13) if self.source else 13
        if self.source:
            found["source"] = tokens(f"{name}.source", (rows, length), self.source)
        if self.memory:
            found["memory"] = integers(f"memory.{name}", (rows, length, self.memory), 8) / 64
        if some_padded and (self.source or self.memory):
            pads = [(0, 4), (0, 0), (3, 0), (0, 9)][:rows]
            real = padded(torch.zeros(rows, length), shrunk(pads, length, 13))
            found["source_real" if self.source else "memory_real"] = real
        return found

    def _sides(self, pads: Pads) -> Pads:
        """Those of the paddings that this model can have."""
        return [(a if "left" in self.padding else 0, b if "right" in self.padding else 0) for a, b in pads]

    def standard(self) -> list[Batch]:
        """No mask at all; rows padded nowhere, left, right and on both sides; positions that reach far; a long one, where
        there are positions for more than in the others.
        """
        length, far = self.within(23), self.within(17)
        steps = torch.arange(far) * torch.tensor([[3], [11]])
        found = [self.batch("plain", (2, self.within(19)))]
        if self.padding or self.source or self.memory:
            pads = shrunk([(0, 0), (5, 0), (0, 7), (3, 4)], length, 23)
            found.append(self.batch("padded", (4, length), self._sides(pads)))
        if self.positions:
            found.append(self.batch("strided", (2, far), [(0, 0), (0, 0)], steps))
        if self.within(45) > length:
            found.append(self.batch("long", (1, self.within(45))))
        return found

    def cached(self) -> list[Batch]:
        """Nineteen tokens, bare and padded on the left, short enough for every table that grows past a length."""
        return self.lasting(19)

    def lasting(self, length: int) -> list[Batch]:
        """Texts of so many tokens, bare and padded on the left."""
        length = self.within(length)
        found = [self.batch("cache", (2, length))]
        if "left" in self.padding or self.source or self.memory:
            pads = shrunk([(0, 0), (4, 0), (9, 0)], length, 19)
            found.append(self.batch("cache-left", (3, length), self._sides(pads)))
        return found

    def labels(self, batch: Batch) -> Tensor:
        """What there is to learn of a batch without text. Errors: NotImplementedError, but for those that read some."""
        raise NotImplementedError(f"{type(self).__name__} does not say what there is to learn of {batch.name}")

    def prompt(self, name: str, shape: tuple[int, int], pads: Pads | None = None) -> Batch:
        """What a text is continued from; where there is a source, the text begins with `start`, and the pads are its own."""
        length = self.within(shape[1])
        shape, pads = (shape[0], length), pads and shrunk(pads, length, shape[1])
        if not self.source:
            made = self.batch(name, shape, pads)
            kept = {"ids", "real", "memory", "memory_real"}  # positions follow from what is real
            return Batch(name=name, inputs={key: x for key, x in made.inputs.items() if key in kept})
        source = tokens(f"{name}.source", shape, self.source)
        sided = pads if self.shiftable or pads is None else [(right, left) for left, right in pads]
        real = {} if sided is None else {"source_real": padded(source, sided)}
        return Batch(name=name, inputs={"ids": torch.full((shape[0], 1), self.start), "source": source, **real})


def rows_of(batch: Batch, rows: slice, tokens: slice = slice(None)) -> Batch:
    """Some rows of a batch, and of those some of the tokens: of the source where there is one."""
    sliced = {"source", "source_real"} if "source" in batch.inputs else {"ids", "real", "positions", "types"}
    inputs = {name: x[rows, tokens] if name in sliced else x[rows] for name, x in batch.inputs.items()}
    return Batch(name=batch.name, inputs=inputs)


def from_ids(name: str, ids: Tensor, **inputs: Any) -> Batch:
    """A batch of these tokens."""
    return Batch(name=name, inputs={"ids": ids, **inputs})
