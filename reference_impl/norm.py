"""Normalisation layers."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from reference_impl.precision import widen


class RMSNorm(nn.Module):
    """RMSNorm(x) = x * rsqrt(Mean(x^2) + eps) * weight, over the last axis. The same as T5LayerNorm.

    Seed 1, "LayerNorm / RMSNorm"; Zhang and Sennrich 2019.
    """

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        wide = widen(x)  # the mean of squares overflows float16 and loses bits in bfloat16
        mean_square = (wide * wide).mean(-1, keepdim=True)  # as (*batch, 1)
        unit = wide * torch.rsqrt(mean_square + self.eps)
        return self.weight * unit.to(x.dtype)  # back before the weight: the order of rounding that Llama was trained with
