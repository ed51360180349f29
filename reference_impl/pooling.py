"""PoolFormer's token mixer: an average over neighbours, which has no parameters. R1, "Token Mixing 与 Channel Mixing"."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class PoolMixing(nn.Module):
    """AvgPool(x) - x, over a square of `size` places around each, of which only those inside the image are counted.

    x is taken off because the residual adds it again. Yu et al. 2022, 3.2.
    """

    def __init__(self, size: int):
        super().__init__()
        self.size = size

    def forward(self, x: Float[Tensor, "b d y x"]) -> Float[Tensor, "b d y x"]:
        mean = F.avg_pool2d(x, self.size, stride=1, padding=self.size // 2, count_include_pad=False)
        return mean - x


class DropPath(nn.Dropout):
    """Stochastic depth, a dropout of whole samples: with probability p in training; what stays is divided by 1 - p.

    Huang et al. 2016.
    """

    def forward(self, input: Float[Tensor, "b ..."]) -> Float[Tensor, "b ..."]:
        if not self.training or self.p == 0:
            return input
        keep, each = 1 - self.p, (len(input), *[1] * (input.ndim - 1))
        kept = (torch.rand(each, dtype=input.dtype, device=input.device) + keep).floor()  # as (b, 1, …), 1 or 0
        return input / keep * kept
