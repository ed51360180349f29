"""Mamba's token mixer: a state space model whose step, input and output depend on the token. R1,
"Token Mixing 与 Channel Mixing"; Gu and Dao 2023, 3.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from reference_impl.ffn import ACTIVATIONS
from reference_impl.precision import widen
from reference_impl.recurrence import LayerState, recall
from reference_impl.site import Site

STATE = ("inputs", "memory")
"""What a layer keeps: the last inputs of Conv (b, f, w), and h (b, f, n)."""


def scan(
    x: Float[Tensor, "b s f"],
    dt: Float[Tensor, "b s f"],
    a: Float[Tensor, "f n"],
    b: Float[Tensor, "b s n"],
    c: Float[Tensor, "b s n"],
    state: Float[Tensor, "b f n"],
) -> tuple[Float[Tensor, "b s f"], Float[Tensor, "b f n"]]:
    """h[t] = exp(dt[t] a) h[t-1] + dt[t] b[t] x[t]; y[t] = h[t] c[t]: every channel its own, with n numbers of memory.

    Returns y and the last h. One token after the other. Gu and Dao 2023, algorithm 2.
    """
    decay = torch.exp(a * dt[..., None])  # as (b, s, f, n)
    intake = dt[..., None] * widen(b)[:, :, None] * widen(x)[..., None]  # as (b, s, f, n)
    y = []
    for t in range(x.shape[1]):
        state = decay[:, t] * state + intake[:, t]  # in float32: products of many decays, and sums of many tokens
        y.append(state.to(x.dtype) @ c[:, t, :, None])  # as (b, f, 1)
    return torch.cat(y, -1).mT, state


def scan_parallel(
    x: Float[Tensor, "b s f"],
    dt: Float[Tensor, "b s f"],
    a: Float[Tensor, "f n"],
    b: Float[Tensor, "b s n"],
    c: Float[Tensor, "b s n"],
    state: Float[Tensor, "b f n"],
) -> tuple[Float[Tensor, "b s f"], Float[Tensor, "b f n"]]:
    """The same for all tokens at once: h[t] = Sum over i of exp(a (dt[i+1] + … + dt[t])) dt[i] b[i] x[i].

    A causal attention without a softmax, in which the weight of i on t is a decay. Needs memory quadratic in s.
    """
    elapsed = widen(dt).cumsum(1)  # as (b, s, f)
    between = (elapsed[:, :, None] - elapsed[:, None, :])[..., None] * a  # as (b, s, i, f, n)
    causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
    decay = torch.exp(between.masked_fill(~causal[:, :, None, None], -torch.inf))
    intake = dt[..., None] * widen(b)[:, :, None] * widen(x)[..., None]  # as (b, i, f, n)
    states = (decay * intake[:, None]).sum(2) + torch.exp(elapsed[..., None] * a) * state[:, None]  # as (b, s, f, n)
    y = (states.to(x.dtype) * c[:, :, None]).sum(-1)
    return y, states[:, -1]


class MambaMixer(nn.Module):
    """LinearOut(SSM(act(Conv(x))) * act(z)) with x, z = LinearIn(u): the only place where tokens meet.

    Conv is causal and depthwise, over the last `conv_width` tokens. Its output decides the step dt = softplus(…), of rank
    `dt_rank` and one a channel, and b and c, one for all channels; a and d are parameters.
    """

    def __init__(
        self,
        *,
        d_model: int,
        d_inner: int,
        d_state: int,
        conv_width: int,
        dt_rank: int,
        bias: bool,
        conv_bias: bool,
        activation: str,
    ):
        super().__init__()
        self.width, self.sizes = conv_width, (dt_rank, d_state, d_state)
        self.activation = ACTIVATIONS[activation]
        self.scan = scan
        self.in_proj = nn.Linear(d_model, 2 * d_inner, bias=bias)
        self.conv = nn.Conv1d(d_inner, d_inner, conv_width, groups=d_inner, bias=conv_bias)
        self.x_proj = nn.Linear(d_inner, sum(self.sizes), bias=False)
        self.dt_proj = nn.Linear(dt_rank, d_inner)
        self.a_log = nn.Parameter(torch.empty(d_inner, d_state))
        self.d = nn.Parameter(torch.empty(d_inner))
        self.out_proj = nn.Linear(d_inner, d_model, bias=bias)
        self.inputs, self.memory = Site(), Site()

    @staticmethod
    def hide(x: Float[Tensor, "b s f"], real: Bool[Tensor, "b s"] | None) -> Float[Tensor, "b s f"]:
        """Nothing in place of padding: it then gives Conv nothing, and h."""
        return x if real is None else x * real[..., None]

    def step(self, low: Float[Tensor, "b s r"]) -> Float[Tensor, "b s f"]:
        """dt: how much time passes at a token, for each channel; above 0."""
        return F.softplus(F.linear(low, self.dt_proj.weight) + self.dt_proj.bias)

    def forward(
        self, u: Float[Tensor, "b s d"], real: Bool[Tensor, "b s"] | None = None, cache: LayerState | None = None
    ) -> Float[Tensor, "b s d"]:
        """real: False for padding, which on the left leaves no trace. cache: `STATE`."""
        x, z = self.in_proj(u).chunk(2, -1)  # two of (b, s, f)
        x = self.hide(x, real)
        empty = x.new_zeros(len(x), x.shape[-1], self.width), widen(x.new_zeros(len(x), *self.a_log.shape))
        last, state = recall(cache, dict(zip(STATE, empty, strict=True)))
        inputs = torch.cat([last, x.mT], -1)  # as (b, f, w + s)
        x = self.activation(self.conv(inputs[..., 1:])).mT  # as (b, s, f); the oldest input kept is out of reach
        x = self.hide(x, real)

        low, b, c = self.x_proj(x).split(self.sizes, -1)  # as (b, s, r), (b, s, n), (b, s, n)
        a = -torch.exp(widen(self.a_log))  # as (f, n)
        y, state = self.scan(x, self.step(low), a, b, c, state)
        last, state = self.inputs(inputs[..., -self.width :]), self.memory(state)
        if cache is not None:
            cache.parts |= {"inputs": last, "memory": state}

        y = (y + x * widen(self.d)) * self.activation(z)  # what y is not in float32, the sum is
        return self.out_proj(y.to(u.dtype))
