"""A witness without text: RoPE makes the rows of q and k that turn together alike in size, so their order shows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from parity_tests.doctor.patient import Patient
from reference_impl.attention import Attention
from reference_impl.position import ROTATIONS

SURE = 0.5
"""How much more alike the rows of the other order have to be: in permuted files it was 1.1, in good ones under 0.1."""


@dataclass(frozen=True)
class Alike:
    """Correlations between the log norms of rows of q and k that make a pair, with i + e/2, or with the next. halves: which of
    the two the model takes them for.
    """

    of_halves: float
    of_pairs: float
    halves: bool

    @property
    def odd(self) -> bool:
        """Whether the rows seem to be in the other order."""
        own, other = (self.of_halves, self.of_pairs) if self.halves else (self.of_pairs, self.of_halves)
        return other - own > SURE and other > SURE

    def __str__(self) -> str:
        return f"{self.of_halves:+.2f} between the halves of a head, {self.of_pairs:+.2f} between neighbours"


def alike(patient: Patient) -> Alike | None:
    """Of all layers together; None for a model without rotary heads of four rows or more."""
    norms: list[Tensor] = []
    halves = True
    for path, module in patient.modules(Attention):
        halves = module.rotate is ROTATIONS["halves"]
        for projection, heads in (("q_proj", module.n_heads), ("k_proj", module.n_kv_heads)):
            rows = patient.parameters[f"{path}.{projection}.weight"].float().norm(dim=1).unflatten(0, (heads, -1))
            if rows.shape[1] < 4 or not rows.all() or not rows.isfinite().all():
                continue
            logs = rows.log()
            norms.append(logs - logs.mean(1, keepdim=True))
    if not norms:
        return None
    of_halves = _between([(x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :]) for x in norms])
    return Alike(of_halves, _between([(x[:, 0::2], x[:, 1::2]) for x in norms]), halves)


def _between(pairs: list[tuple[Tensor, Tensor]]) -> float:
    first, second = (torch.cat([pair[i].flatten() for pair in pairs]) for i in (0, 1))
    return float(torch.corrcoef(torch.stack([first, second]))[0, 1])
