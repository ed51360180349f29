"""Rotary position embedding: the table of angles, and the rotation.

R1, "RoPE"; Su et al. 2021. A *pair* is two of a head's components that turn together.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from reference_impl.precision import wide_dtype, widen
from reference_impl.rope_scaling import Unscaled
from reference_impl.site import Site

Pairing = Literal["halves", "pairs", "gathered", "complex"]
"""Which components turn together: i with i + e/2 (GPT-NeoX), or 2i with 2i + 1 (the paper, Meta). "gathered" is 2i with
2i + 1 as well, and lists the first of all pairs before the second of all: q and k alike, so no score changes. "complex" is
"pairs", computed on complex numbers, which have no half precision.
"""


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """theta (`rope_theta`), the rotated width of a head (even), which components pair up, and the scaling."""

    theta: float
    width: int
    pairing: Pairing
    scaling: Unscaled


class RotaryEmbedding(nn.Module):
    """cos and sin of position times frequency, one of each a pair: computed once a call and used by every layer."""

    def __init__(self, config: RopeConfig):
        super().__init__()
        self.config = config
        self.cos, self.sin = Site(), Site()

    def forward(
        self, positions: Int[Tensor, "b s"], dtype: torch.dtype
    ) -> tuple[Float[Tensor, "b s p"], Float[Tensor, "b s p"]]:
        config, wide = self.config, wide_dtype(dtype)  # half precision cannot tell position 256 from 257
        length = int(positions.max()) + 1
        frequency = config.scaling.frequencies(config.theta, config.width, length).to(positions.device)  # as (p,)
        angle = positions[..., None].to(wide) * frequency.to(wide)  # as (b, s, p)
        cos = angle.cos() * config.scaling.amplitude()
        sin = angle.sin() * config.scaling.amplitude()
        if config.pairing != "complex":
            cos, sin = cos.to(dtype), sin.to(dtype)
        return self.cos(cos), self.sin(sin)


def rotate_halves(
    x: Float[Tensor, "b h s e"], cos: Float[Tensor, "#b s p"], sin: Float[Tensor, "#b s p"]
) -> Float[Tensor, "b h s e"]:
    """Turn component i with i + e/2: x * cos + RotateHalf(x) * sin."""
    cos, sin = (torch.cat([table, table], -1).unsqueeze(1) for table in (cos, sin))  # as (b, 1, s, e)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def rotate_pairs(
    x: Float[Tensor, "b h s e"], cos: Float[Tensor, "#b s p"], sin: Float[Tensor, "#b s p"]
) -> Float[Tensor, "b h s e"]:
    """Turn component 2i with 2i + 1: x * cos + Stack(-x[1::2], x[::2]) * sin."""
    cos, sin = (table.repeat_interleave(2, -1).unsqueeze(1) for table in (cos, sin))  # as (b, 1, s, e)
    even, odd = x[..., 0::2], x[..., 1::2]
    return x * cos + torch.stack([-odd, even], -1).flatten(-2) * sin


def rotate_gathered(
    x: Float[Tensor, "b h s e"], cos: Float[Tensor, "#b s p"], sin: Float[Tensor, "#b s p"]
) -> Float[Tensor, "b h s e"]:
    """Turn component 2i with 2i + 1, and put them half a head apart."""
    return rotate_halves(torch.cat([x[..., 0::2], x[..., 1::2]], -1), cos, sin)


def rotate_complex(
    x: Float[Tensor, "b h s e"], cos: Float[Tensor, "#b s p"], sin: Float[Tensor, "#b s p"]
) -> Float[Tensor, "b h s e"]:
    """Turn component 2i with 2i + 1, as the product of x[2i] + i x[2i+1] with exp(i angle), in float32 or better."""
    numbers = torch.view_as_complex(widen(x).unflatten(-1, (-1, 2)).contiguous())  # as (b, h, s, p)
    turned = numbers * torch.complex(cos, sin).unsqueeze(1)
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


ROTATIONS = {"halves": rotate_halves, "pairs": rotate_pairs, "gathered": rotate_gathered, "complex": rotate_complex}
