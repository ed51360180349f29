"""The seeds' formulas, letter by letter: what the facts hold torch and transformers against."""

from __future__ import annotations

import torch
from torch import Tensor


def heads(x: Tensor, n: int) -> Tensor:
    """(b, s, n e) -> (b, n, s, e)."""
    return x.unflatten(-1, (n, -1)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    """(b, n, s, e) -> (b, s, n e)."""
    return x.transpose(1, 2).flatten(2)


def causal(length: int) -> Tensor:
    """(s, s), True where a query may look."""
    return torch.ones(length, length, dtype=torch.bool).tril()


def attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None = None, scale: float | None = None) -> Tensor:
    """Softmax(q @ k^T * rsqrt(d_k) + mask) @ v."""
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    return scores.softmax(-1) @ v


def layer_norm(x: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
    """(x - Mean(x)) * rsqrt(Var(x) + eps) * weight + bias."""
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred**2).mean(-1, keepdim=True) + norm.eps) * norm.weight + norm.bias


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x * rsqrt(Mean(x^2) + eps) * weight."""
    return x * torch.rsqrt((x**2).mean(-1, keepdim=True) + eps) * weight


def rotate_half(x: Tensor) -> Tensor:
    """Cat(-x[..., d_k/2:], x[..., :d_k/2])."""
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1)


def rotate_every_two(x: Tensor) -> Tensor:
    """Stack(-x[..., 1::2], x[..., ::2])."""
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


def inv_freq(theta: float, width: int) -> Tensor:
    """1 / theta^(Arange(0, d_k, 2) / d_k), as (d_k/2,)."""
    return 1 / theta ** (torch.arange(0, width, 2, dtype=torch.float64) / width)


def angles(positions: Tensor, theta: float, width: int) -> Tensor:
    """pos * inv_freq, as (s, d_k/2)."""
    return positions.double()[:, None] * inv_freq(theta, width)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x * cos + RotateHalf(x) * sin. x (b, h, s, e), cos and sin (b, s, e)."""
    return x * cos.unsqueeze(1) + rotate_half(x) * sin.unsqueeze(1)


def rope_at(x: Tensor, first: int = 0, theta: float = 10000.0) -> Tensor:
    """RoPE of x (b, h, s, e), whose first position is `first`, HF's pairing."""
    angle = angles(torch.arange(first, first + x.shape[-2]), theta, x.shape[-1]).repeat(1, 2)
    return rope(x, angle.cos()[None], angle.sin()[None])


def sinusoid(length: int, width: int) -> Tensor:
    """PE(pos)[2i] = Sin(pos / 10000^(2i / d_model)), PE(pos)[2i+1] = Cos(the same), as (length, width)."""
    angle = angles(torch.arange(length), 10000.0, width)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return x * torch.sigmoid(x)


def gated(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """LinearDown(SiLU(LinearGate(x)) * LinearUp(x)), from weights (out, in)."""
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T
