"""Normalisation layers."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from reference_impl.precision import widen


class LayerNorm(nn.Module):
    """LayerNorm(x) = (x - Mean(x)) * rsqrt(Var(x) + eps) * weight + bias, over the last axis.

    R1, "LayerNorm / RMSNorm"; R2, "1.4 层归一化 Layer Norm"; Ba et al. 2016.
    """

    def __init__(self, width: int, eps: float, *, bias: bool = True):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        wide = widen(x)  # a difference of large numbers, squared: half precision would lose it
        centred = wide - wide.mean(-1, keepdim=True)
        variance = (centred * centred).mean(-1, keepdim=True)  # as (*batch, 1); divided by d, not by d - 1
        y = centred * torch.rsqrt(variance + self.eps) * widen(self.weight)
        if self.bias is not None:
            y = y + widen(self.bias)
        return y.to(x.dtype)  # back at the end: weight and bias are applied before rounding


class RMSNorm(nn.Module):
    """RMSNorm(x) = x * rsqrt(Mean(x^2) + eps) * weight, over the last axis. The same as T5LayerNorm.

    R1, "LayerNorm / RMSNorm"; Zhang and Sennrich 2019.
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


class ImageNorm(nn.Module):
    """GroupNorm of one group: LayerNorm over all channels and places of an image, with weight and bias by channel.

    Wu and He 2018.
    """

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, x: Float[Tensor, "b d y x"]) -> Float[Tensor, "b d y x"]:
        wide = widen(x)  # as in LayerNorm
        centred = wide - wide.mean((1, 2, 3), keepdim=True)
        variance = (centred * centred).mean((1, 2, 3), keepdim=True)  # as (b, 1, 1, 1)
        weight, bias = (widen(p)[:, None, None] for p in (self.weight, self.bias))  # two of (d, 1, 1)
        return (centred * torch.rsqrt(variance + self.eps) * weight + bias).to(x.dtype)
