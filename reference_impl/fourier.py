"""FNet's token mixer: a Fourier transform, which has no parameters. R1, "Token Mixing 与 Channel Mixing"."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from reference_impl.precision import widen


class FourierMixing(nn.Module):
    """Re(DFT_seq(DFT_model(x))): every token becomes a fixed combination of all of them, and so does every channel.

    Padding is mixed in like any token, so there is no mask that could hide it. Lee-Thorp et al. 2021, 3.
    """

    def forward(self, x: Float[Tensor, "b s d"]) -> Float[Tensor, "b s d"]:
        spectrum = torch.fft.fftn(widen(x), dim=(1, 2))  # as (b, s, d), complex; there is no transform in half precision
        return spectrum.real.to(x.dtype)
