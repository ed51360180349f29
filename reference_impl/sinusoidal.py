"""Sinusoidal positions: sines and cosines of fixed wavelengths, added at the input alone. Nothing is trained.

R1, "Sinusoidal PE"; Vaswani et al. 2017, 3.5.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


def angles(positions: Int[Tensor, "*batch"], width: int) -> Float[Tensor, "*batch p"]:
    """pos / 10000^(2i / d), in radians and in float64, one for each pair of components: wavelengths from 2 pi to nearly
    10000 * 2 pi positions. Where `width` is odd, the last angle has a sine and no cosine.
    """
    period = 10000.0 ** (torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width)  # as (p,)
    return positions.double()[..., None] / period


def sinusoidal_interleaved(positions: Int[Tensor, "*batch"], width: int) -> Float[Tensor, "*batch d"]:
    """The paper's order: PE(pos)[2i] = sin(angle i), PE(pos)[2i + 1] = cos(angle i). In float64; models round it."""
    angle = angles(positions, width)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., :width]


def sinusoidal_halves(positions: Int[Tensor, "*batch"], width: int) -> Float[Tensor, "*batch d"]:
    """Marian's order: the sines of all angles first, then the cosines. The same numbers, one permutation apart.

    Made in float64 and rounded to float32 once, as the tables of Marian's checkpoints were.
    """
    angle = angles(positions, width)
    return torch.cat([angle.sin(), angle[..., : width // 2].cos()], -1).float()


class SinusoidalPositions(nn.Module):
    """`sinusoidal_halves` as a frozen table of `max_positions` rows, looked up by position. A row is made when it is
    asked for, so that nothing has to be stored or moved to a device.
    """

    def __init__(self, max_positions: int, width: int):
        super().__init__()
        self.max_positions, self.width = max_positions, width

    def forward(self, positions: Int[Tensor, "#b s"]) -> Float[Tensor, "#b s d"]:
        """float32. Errors: ValueError for a position that the table does not have."""
        outside = positions[(positions < 0) | (positions >= self.max_positions)]
        if outside.numel():
            last = self.max_positions - 1
            raise ValueError(f"position {int(outside[0])} has no embedding: the table holds positions 0 to {last}")
        return sinusoidal_halves(positions, self.width)
