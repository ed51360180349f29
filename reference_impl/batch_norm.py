"""BatchNorm, which normalises by channel over all samples where LayerNorm normalises each token by itself.

R2, "1.4 层归一化 Layer Norm"; Ioffe and Szegedy 2015.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from reference_impl.precision import widen


class BatchNorm(nn.Module):
    """BatchNorm(x) = (x - Mean(x)) * rsqrt(Var(x) + eps) * weight + bias, by channel, over the batch and all places.

    In training by the batch's own mean and variance, which it also remembers; in evaluation by what it remembers.
    momentum: the share of the newest batch in that; None: all batches count alike.
    R2, "1.4 层归一化 Layer Norm"; Ioffe and Szegedy 2015, algorithms 1 and 2.
    """

    running_mean: Tensor
    running_var: Tensor
    n_seen: Tensor

    def __init__(self, width: int, eps: float, momentum: float | None):
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.register_buffer("n_seen", torch.zeros((), dtype=torch.long))

    def forward(self, x: Float[Tensor, "b c *places"]) -> Float[Tensor, "b c *places"]:
        """Errors: ValueError in training when a channel has one value, whose variance is none."""
        wide = widen(x).transpose(0, 1)  # as (c, b, *places); as in LayerNorm, half precision would lose the variance
        values = wide.flatten(1)  # as (c, n)
        mean, variance = widen(self.running_mean), widen(self.running_var)
        if self.training:
            if values.shape[1] < 2:
                raise ValueError(f"a batch of shape {tuple(x.shape)} has one value a channel, and so no variance")
            mean = values.mean(1)
            variance = (values - mean[:, None]).square().mean(1)  # divided by n
            self._remember(mean.detach(), variance.detach(), values.shape[1])
        centred = (values - mean[:, None]) * torch.rsqrt(variance + self.eps)[:, None]
        y = centred * widen(self.weight)[:, None] + widen(self.bias)[:, None]
        return y.view(wide.shape).transpose(0, 1).to(x.dtype)

    @torch.no_grad()
    def _remember(self, mean: Float[Tensor, " c"], variance: Float[Tensor, " c"], n: int) -> None:
        self.n_seen += 1
        newest = 1 / float(self.n_seen) if self.momentum is None else self.momentum
        unbiased = variance * n / (n - 1)  # what is remembered is of the population, and divided by n - 1
        self.running_mean += newest * (mean - self.running_mean)
        self.running_var += newest * (unbiased - self.running_var)
