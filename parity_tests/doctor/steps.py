"""What a search comes to."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from parity_tests.doctor.patient import Patient
from parity_tests.doctor.repair import Repair
from parity_tests.doctor.statistics import Gain


@dataclass(frozen=True)
class Tried:
    """A repair and what the tokens of the half for choosing lose with it."""

    repair: Repair
    patient: Patient
    losses: Tensor


@dataclass(frozen=True)
class Step:
    """A repair that was chosen. alike: others that cannot be told apart from it. loss: of all tokens, before and after."""

    repair: Repair
    alike: tuple[Repair, ...]
    patient: Patient
    gain: Gain
    tried: int
    before: float
    after: float


@dataclass(frozen=True)
class Found:
    """What the search came to. small: a gain that is not worth the name, or not sure. tried: repairs in the first round."""

    steps: tuple[Step, ...]
    loss: float
    tried: int
    small: Step | None = None

    @property
    def best(self) -> float:
        return self.steps[-1].after if self.steps else self.loss
