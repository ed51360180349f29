"""The inputs of every comparison: token ids, which of them are real, and their positions. Deterministic, no RNG."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fixtures.values import integers


@dataclass(frozen=True, kw_only=True)
class Batch:
    """ids (b, s); real (b, s), False for padding; positions (b, s). None: not given to either side."""

    name: str
    ids: Tensor
    real: Tensor | None = None
    positions: Tensor | None = None

    @property
    def keep(self) -> Tensor:
        """(b, s): the tokens whose results are defined, and so compared."""
        return torch.ones_like(self.ids, dtype=torch.bool) if self.real is None else self.real

    def to(self, device: str) -> "Batch":
        real, positions = (None if x is None else x.to(device) for x in (self.real, self.positions))
        return Batch(name=self.name, ids=self.ids.to(device), real=real, positions=positions)


def tokens(name: str, shape: tuple[int, int], vocab_size: int) -> Tensor:
    """Token ids (b, s) from the name alone."""
    return (integers(f"ids.{name}", shape, 24).long() + 2**23) % vocab_size


def positions_of(real: Tensor) -> Tensor:
    """Real tokens counted from 0 in each row."""
    return (real.long().cumsum(-1) - 1).clamp(min=0)


def padded(ids: Tensor, pads: list[tuple[int, int]]) -> Tensor:
    """`real` (b, s) for rows that begin and end with so many padding tokens."""
    slot = torch.arange(ids.shape[1])
    return torch.stack([(slot >= left) & (slot < ids.shape[1] - right) for left, right in pads])


def standard_batches(vocab_size: int) -> list[Batch]:
    """No mask at all; rows padded nowhere, left, right and on both sides; positions that reach far; a long one."""
    plain = tokens("plain", (2, 19), vocab_size)
    mixed = tokens("padded", (4, 23), vocab_size)
    real = padded(mixed, [(0, 0), (5, 0), (0, 7), (3, 4)])
    strided = tokens("strided", (2, 17), vocab_size)
    steps = torch.arange(17) * torch.tensor([[3], [11]])
    return [
        Batch(name="plain", ids=plain),
        Batch(name="padded", ids=mixed, real=real, positions=positions_of(real)),
        Batch(name="strided", ids=strided, real=torch.ones_like(strided, dtype=torch.bool), positions=steps),
        Batch(name="long", ids=tokens("long", (1, 45), vocab_size)),
    ]
