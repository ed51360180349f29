"""What losses say, and how sure that is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

WORTH = 0.05
"""Nats a token: what a repair has to gain to be named."""
LEVEL = 0.05
"""How often the interval of any of the repairs that were tried may lie wrong by chance."""


@dataclass(frozen=True)
class Gain:
    """The mean of paired differences between losses, in nats, with its interval."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def sure(self) -> bool:
        """Whether it is a gain at all."""
        return self.low > 0

    @property
    def worth(self) -> bool:
        """Whether it is worth the name."""
        return self.sure and self.mean >= WORTH

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"


def gain(before: Tensor, after: Tensor, tried: int, groups: Tensor | None = None) -> Gain:
    """What is gained from losses (n,) to losses (n,) of the same tokens, with an interval as wide as so many repairs tried
    demand (Bonferroni): each gets its share of LEVEL.

    groups: (n,), whole numbers; tokens of one are not taken as independent, as the same token after the same one is, which a
    text of many like lines has often. Without, all are (the variance of clustered data; Liang and Zeger 1986).
    """
    differences = (before - after).double()
    n = len(differences)
    mean = differences.mean()
    _, group = torch.arange(n).unique(return_inverse=True) if groups is None else groups.unique(return_inverse=True)
    sums = torch.zeros(int(group.max()) + 1, dtype=torch.float64).index_add(0, group, differences - mean)
    m = len(sums)
    error = math.sqrt(float((sums * sums).sum()) * m / (m - 1)) / n if m > 1 else math.inf
    reach = NormalDist().inv_cdf(1 - LEVEL / (2 * max(tried, 1))) * error
    return Gain(float(mean), float(mean) - reach, float(mean) + reach, n)


def entropy(tokens: Iterable[int]) -> float:
    """Nats a token: what one loses who knows how often each token occurs in this text, and nothing else."""
    counts = Counter(tokens)
    n = sum(counts.values())
    return -sum(count / n * math.log(count / n) for count in counts.values())
