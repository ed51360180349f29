"""Frequencies of the rotary position embedding, and the ways to stretch them to longer texts.

R1, "RoPE"; Su et al. 2021. A *pair* is two of a head's components that turn together.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


def inverse_frequencies(theta: float | Tensor, width: int) -> Float[Tensor, " p"]:
    """1 / theta^(2i / width), in radians a position, computed in float32 as every checkpoint was trained with."""
    exponents = torch.arange(0, width, 2, dtype=torch.float32) / width
    return 1.0 / theta**exponents


@dataclass(frozen=True, kw_only=True)
class Unscaled:
    """RoPE as published: no change of the frequencies."""

    def frequencies(self, theta: float, width: int, length: int) -> Float[Tensor, " p"]:
        """Angles a position, in radians, for a sequence of `length` positions."""
        return inverse_frequencies(theta, width)

    def amplitude(self) -> float:
        """What cos and sin are multiplied with."""
        return 1.0

    def score_factor(self) -> float:
        """What q and k are each multiplied with beyond 1 / sqrt(width), where a model takes that from its scaling."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Linear(Unscaled):
    """Position interpolation (Chen et al. 2023): every frequency divided by `factor`."""

    factor: float

    def frequencies(self, theta: float, width: int, length: int) -> Float[Tensor, " p"]:
        return inverse_frequencies(theta, width) / self.factor


@dataclass(frozen=True, kw_only=True)
class DynamicNTK(Unscaled):
    """NTK-aware scaling that sets in past `max_positions` and grows with the length: theta is enlarged so that the
    slowest pair is interpolated and the fastest hardly changes. The table depends on `length`, so a token decoded
    later is rotated otherwise than the same token in one pass: that is the method, not an error.
    """

    factor: float
    max_positions: int

    def frequencies(self, theta: float, width: int, length: int) -> Float[Tensor, " p"]:
        if length <= self.max_positions:
            return inverse_frequencies(theta, width)
        stretch = self.factor * torch.tensor(length) / self.max_positions - (self.factor - 1)  # in float32
        return inverse_frequencies(theta * stretch ** (width / (width - 2)), width)


@dataclass(frozen=True, kw_only=True)
class YaRN(Unscaled):
    """YaRN (Peng et al. 2023): fast pairs keep their frequency, slow ones are divided by `factor`, a ramp between.

    `beta_fast` and `beta_slow` are turns made over `original_positions`: pairs with more turns than beta_fast are
    kept, with fewer than beta_slow interpolated. `rounded` moves the ramp's ends to whole pairs.
    """

    factor: float
    original_positions: int
    beta_fast: float
    beta_slow: float
    rounded: bool
    attention_factor: float | None
    mscale: float | None
    mscale_all_dim: float | None

    def frequencies(self, theta: float, width: int, length: int) -> Float[Tensor, " p"]:
        def pair_with(turns: float) -> float:
            return width * math.log(self.original_positions / (turns * 2 * math.pi)) / (2 * math.log(theta))

        first, last = pair_with(self.beta_fast), pair_with(self.beta_slow)
        if self.rounded:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, width - 1)
        if first == last:
            last += 0.001  # a step rather than a division by nought
        pairs = torch.arange(width // 2, dtype=torch.float32)
        kept = 1 - ((pairs - first) / (last - first)).clamp(0, 1)  # 1 for fast pairs, 0 for slow ones
        period = theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
        return (1.0 / (self.factor * period)) * (1 - kept) + (1.0 / period) * kept

    def amplitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return yarn_mscale(self.factor, self.mscale) / yarn_mscale(self.factor, self.mscale_all_dim)
        return yarn_mscale(self.factor, 1.0)

    def score_factor(self) -> float:
        return yarn_mscale(self.factor, self.mscale_all_dim) if self.mscale_all_dim else 1.0


def yarn_mscale(factor: float, weight: float) -> float:
    """YaRN's temperature, 0.1 * weight * ln(factor) + 1: the root of what it multiplies the scores with."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


@dataclass(frozen=True, kw_only=True)
class Llama3(Unscaled):
    """Llama 3.1's scaling: wavelengths above original / low_freq_factor are stretched by `factor`, those below
    original / high_freq_factor kept, those between blended by where they lie.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int

    def frequencies(self, theta: float, width: int, length: int) -> Float[Tensor, " p"]:
        plain = inverse_frequencies(theta, width)
        wavelength = 2 * math.pi / plain  # in positions
        kept = (self.original_positions / wavelength - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        blended = (1 - kept) * plain / self.factor + kept * plain
        slow = wavelength > self.original_positions / self.low_freq_factor
        fast = wavelength < self.original_positions / self.high_freq_factor
        return torch.where(slow, plain / self.factor, torch.where(fast, plain, blended))


@dataclass(frozen=True, kw_only=True)
class Divided(Unscaled):
    """Every pair has a divisor of its own, at all lengths: what another scaling comes to, written down as numbers."""

    divisors: tuple[float, ...]

    def frequencies(self, theta: float, width: int, length: int) -> Float[Tensor, " p"]:
        return inverse_frequencies(theta, width) / torch.tensor(self.divisors, dtype=torch.float32)


@dataclass(frozen=True, kw_only=True)
class LongRoPE(Unscaled):
    """LongRoPE (Ding et al. 2024): every pair has a divisor of its own, found by search, in two sets: `short_factor` up
    to `original_positions`, `long_factor` beyond. `factor` is how much longer texts get; the amplitude follows from it
    unless `attention_factor` gives that.

    The set depends on `length`: keys cached before the change stay as the short one turned them, so decoding across it
    differs from one pass, as with DynamicNTK.
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    factor: float
    original_positions: int
    attention_factor: float | None

    def frequencies(self, theta: float, width: int, length: int) -> Float[Tensor, " p"]:
        chosen = self.long_factor if length > self.original_positions else self.short_factor
        divisors = torch.tensor(chosen, dtype=torch.float32)  # as (p,)
        period = theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
        return 1.0 / (divisors * period)

    def amplitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1:
            return 1.0
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_positions))
