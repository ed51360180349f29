"""What a repair is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from parity_tests.doctor.patient import Patient


@dataclass(frozen=True, kw_only=True)
class Repair:
    """One mistake that a file may have, and how it is undone.

    name: the mistake. so: what the file is then, said of it. apply: the repaired one. far: shows between tokens far apart, so
    that few tokens cannot tell. local: of one or two layers alone, so that other damage to one of them may look like it.
    """

    name: str
    so: str
    apply: Callable[[Patient], Patient]
    far: bool = False
    local: bool = False

    @property
    def undone(self) -> str:
        """How the report speaks of it."""
        return f"*{self.name}* undone"


@dataclass(frozen=True, kw_only=True)
class Departure(Repair):
    """A repair that only the reference can make, by departing: no order of weights and no key of a config says it."""

    @property
    def undone(self) -> str:
        return f"the reference departing, *{self.name}*,"


@dataclass(frozen=True, kw_only=True)
class Absence(Repair):
    """A block left out: no repair, but it says where the damage lies."""

    @property
    def undone(self) -> str:
        return f"*{self.name}* left out"


def rewritten(
    name: str, so: str, change: Callable[[Patient], Mapping[str, Tensor]], *, far: bool = False, local: bool = False
) -> Repair:
    """A repair that gives some parameters other values."""
    return Repair(
        name=name, so=so, apply=lambda patient: patient.with_parameters(change(patient)), far=far, local=local
    )
