"""Token mixers with fixed weights or none, and layers made of them: MLP-Mixer, RankMixer, TokenMixer-Large, and the
depthwise-separable convolution seen the same way. R1, "Token Mixing 与 Channel Mixing".
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from reference_impl.ffn import ACTIVATIONS, FFN
from reference_impl.norm import LayerNorm

# --- MLP-Mixer: Tolstikhin et al. 2021 ---


class TokenMLP(nn.Module):
    """An FFN along the sequence: a channel is a row of `length` tokens, mixed by weights that do not see the input."""

    def __init__(self, *, length: int, hidden: int, activation: str):
        super().__init__()
        self.length = length
        self.ffn = FFN(d_model=length, d_ff=hidden, bias=True, activation=activation)

    def forward(self, x: Float[Tensor, "b s d"]) -> Float[Tensor, "b s d"]:
        """Errors: ValueError for a sequence of another length than the weights are made for."""
        if x.shape[1] != self.length:
            raise ValueError(f"this mixer's weights are for {self.length} tokens, and {x.shape[1]} came")
        return self.ffn(x.mT).mT  # as (b, d, s) inside


class MixerLayer(nn.Module):
    """z = x + TokenMLP(LayerNorm(x)); y = z + FFN(LayerNorm(z)).

    d_tokens, d_ff: hidden widths of the two networks, along the sequence and along the channels.
    """

    def __init__(
        self, *, length: int, d_model: int, d_tokens: int, d_ff: int, norm_eps: float, activation: str = "gelu"
    ):
        super().__init__()
        self.token_norm = LayerNorm(d_model, norm_eps)
        self.tokens = TokenMLP(length=length, hidden=d_tokens, activation=activation)
        self.ffn_norm = LayerNorm(d_model, norm_eps)
        self.ffn = FFN(d_model=d_model, d_ff=d_ff, bias=True, activation=activation)

    def forward(self, x: Float[Tensor, "b s d"]) -> Float[Tensor, "b s d"]:
        z = x + self.tokens(self.token_norm(x))
        return z + self.ffn(self.ffn_norm(z))


# --- RankMixer: Zhu et al. 2025; TokenMixer-Large: Jiang et al. 2026 ---


def mix_heads(x: Float[Tensor, "b s d"], n_heads: int) -> Float[Tensor, "b h d2"]:
    """Each of s tokens is cut into h pieces; new token h is Concat(x[1][h], x[2][h], ..., x[s][h]). No parameters.

    `mix_heads(mix_heads(x, h), s)` is x again; where h = s the shape stays and the rearrangement undoes itself.
    Errors: ValueError when d is no multiple of h.
    """
    if x.shape[-1] % n_heads:
        raise ValueError(f"a token of width {x.shape[-1]} cannot be cut into {n_heads} equal pieces")
    pieces = x.unflatten(-1, (n_heads, -1))  # as (b, s, h, d / h)
    return pieces.transpose(1, 2).flatten(-2)  # as (b, h, s * d / h)


class PerTokenFFN(nn.Module):
    """LinearOut(act(LinearIn(x))), with weights of its own for each of `length` tokens: features of unlike kinds."""

    def __init__(self, *, length: int, d_model: int, d_ff: int, activation: str):
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.in_weight = nn.Parameter(torch.empty(length, d_ff, d_model))
        self.in_bias = nn.Parameter(torch.empty(length, d_ff))
        self.out_weight = nn.Parameter(torch.empty(length, d_model, d_ff))
        self.out_bias = nn.Parameter(torch.empty(length, d_model))

    def forward(self, x: Float[Tensor, "b s d"]) -> Float[Tensor, "b s d"]:
        inner = self.activation(torch.einsum("bsd,sfd->bsf", x, self.in_weight) + self.in_bias)
        return torch.einsum("bsf,sdf->bsd", inner, self.out_weight) + self.out_bias


class RankMixerLayer(nn.Module):
    """The rearrangement as token mixer with as many heads as tokens, PerTokenFFN as channel mixer.

    As published, the norm comes last: z = LayerNorm(x + Mix(x)); y = LayerNorm(z + PerTokenFFN(z)). With `norm_first`,
    in the form of the seed: z = x + Mix(LayerNorm(x)); y = z + PerTokenFFN(LayerNorm(z)). Either way x[h] is added to
    what is no longer token h.
    """

    def __init__(
        self, *, length: int, d_model: int, d_ff: int, norm_eps: float, norm_first: bool, activation: str = "gelu"
    ):
        super().__init__()
        self.length, self.norm_first = length, norm_first
        self.mix_norm = LayerNorm(d_model, norm_eps)
        self.ffn_norm = LayerNorm(d_model, norm_eps)
        self.ffn = PerTokenFFN(length=length, d_model=d_model, d_ff=d_ff, activation=activation)

    def forward(self, x: Float[Tensor, "b s d"]) -> Float[Tensor, "b s d"]:
        if self.norm_first:
            z = x + mix_heads(self.mix_norm(x), self.length)
            return z + self.ffn(self.ffn_norm(z))
        z = self.mix_norm(x + mix_heads(x, self.length))
        return self.ffn_norm(z + self.ffn(z))


class TokenMixerLargeLayer(nn.Module):
    """z = x + Restore(PerTokenFFN(Mix(LayerNorm(x)))); y = z + PerTokenFFN(LayerNorm(z)).

    The order is restored before the residual, so that x[i] is added to what belongs to token i; hence any number of
    heads will do. A network works on the mixed tokens between, without which the two rearrangements would cancel. Norm
    and networks are RankMixer's: the paper's gates and experts, of which the seed says nothing, are left out.
    """

    def __init__(
        self, *, length: int, d_model: int, n_heads: int, d_ff: int, norm_eps: float, activation: str = "gelu"
    ):
        super().__init__()
        self.length, self.n_heads = length, n_heads
        self.mix_norm = LayerNorm(d_model, norm_eps)
        self.mixed_ffn = PerTokenFFN(
            length=n_heads, d_model=length * d_model // n_heads, d_ff=d_ff, activation=activation
        )
        self.ffn_norm = LayerNorm(d_model, norm_eps)
        self.ffn = PerTokenFFN(length=length, d_model=d_model, d_ff=d_ff, activation=activation)

    def forward(self, x: Float[Tensor, "b s d"]) -> Float[Tensor, "b s d"]:
        mixed = self.mixed_ffn(mix_heads(self.mix_norm(x), self.n_heads))  # as (b, h, s * d / h)
        z = x + mix_heads(mixed, self.length)  # as (b, s, d)
        return z + self.ffn(self.ffn_norm(z))


# --- the depthwise-separable convolution: Howard et al. 2017 (MobileNet) ---


class DepthwiseConv(nn.Module):
    """Each channel convolved over the picture by itself, stride 1, zeros around: token mixing, tokens being pixels.

    kernel: an odd number of pixels in both directions. Errors: ValueError when it is even, and has no middle.
    """

    def __init__(self, *, d_model: int, kernel: int):
        super().__init__()
        if kernel % 2 == 0:
            raise ValueError(f"a kernel of {kernel} pixels has no middle; take an odd number")
        self.weight = nn.Parameter(torch.empty(d_model, kernel, kernel))

    def forward(self, x: Float[Tensor, "b height width d"]) -> Float[Tensor, "b height width d"]:
        kernel, (height, width) = self.weight.shape[-1], x.shape[1:3]
        border = kernel // 2
        padded = F.pad(x, (0, 0, border, border, border, border))
        y = torch.zeros_like(x)
        for i in range(kernel):
            for j in range(kernel):
                y = y + padded[:, i : i + height, j : j + width] * self.weight[:, i, j]
        return y


class SeparableConv(nn.Module):
    """LinearPoint(DepthwiseConv(x)): token mixing, then the 1 x 1 convolution, a Linear at each pixel: channel mixing.

    One convolution of rank one: its kernel is [o, c, i, j] = point[o, c] * depth[c, i, j]. MobileNet's norms and
    activations, which stand behind each of the two, are left out.
    """

    def __init__(self, *, d_in: int, d_out: int, kernel: int):
        super().__init__()
        self.depth = DepthwiseConv(d_model=d_in, kernel=kernel)
        self.point = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x: Float[Tensor, "b height width d"]) -> Float[Tensor, "b height width d2"]:
        return self.point(self.depth(x))
