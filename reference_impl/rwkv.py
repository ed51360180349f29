"""RWKV-4's mixers: attention whose weights are a decay by distance and a key, and a gated network. R1,
"Token Mixing 与 Channel Mixing"; Peng et al. 2023, 3.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from reference_impl.precision import widen
from reference_impl.recurrence import LayerState, recall
from reference_impl.site import Site

STATE = ("channel_input", "time_input", "numerator", "denominator", "largest")
"""What a layer keeps: the last inputs of its two mixers (b, d), and `wkv`'s sums (b, f)."""

Sums = tuple[Tensor, Tensor, Tensor]
"""Numerator and denominator of a mean, each divided by exp(largest), so that no exponential overflows."""


def no_sums(k: Float[Tensor, "b s f"]) -> Sums:
    """Those of no tokens, in float32 at least: they may run over the whole text."""
    nothing = widen(torch.zeros_like(k[:, 0]))
    return nothing, nothing, nothing - torch.inf


def wkv(
    k: Float[Tensor, "b s f"], v: Float[Tensor, "b s f"], decay: Float[Tensor, " f"], first: Float[Tensor, " f"], sums: Sums
) -> tuple[Float[Tensor, "b s f"], Sums]:
    """y[t] = the mean of v[i] up to t, weighted with exp(k[i] + (t - 1 - i) decay) for i < t and exp(k[t] + first) for t.

    decay is negative. Returns y, and the sums over all tokens. One token after the other: y needs the sums alone.
    Peng et al. 2023, 3.1.3 and appendix D.
    """
    (num, den, top), y = sums, []
    for now, value in zip(widen(k).unbind(1), v.unbind(1), strict=True):  # two of (b, f)
        most = torch.maximum(top, now + first)
        before, here = torch.exp(top - most), torch.exp(now + first - most)
        y.append(((before * num + here * value) / (before * den + here)).to(v.dtype))

        most = torch.maximum(top + decay, now)
        before, here = torch.exp(top + decay - most), torch.exp(now - most)
        num, den, top = before * num + here * value, before * den + here, most
    return torch.stack(y, 1), (num, den, top)


def wkv_parallel(
    k: Float[Tensor, "b s f"], v: Float[Tensor, "b s f"], decay: Float[Tensor, " f"], first: Float[Tensor, " f"], sums: Sums
) -> tuple[Float[Tensor, "b s f"], Sums]:
    """The same for all tokens at once: a softmax over the tokens, one a channel, and the earlier sums are one token more."""
    (num, den, top), wide = sums, widen(k)
    n = k.shape[1]
    ages = torch.arange(n + 1, device=k.device)[:, None] - 1 - torch.arange(n, device=k.device)  # as (s + 1, i): t - 1 - i
    past = wide[:, None] + ages[..., None] * decay  # as (b, s + 1, i, f)
    past = past.masked_fill((ages < 0)[..., None], -torch.inf)
    own = torch.diag_embed((wide + first).mT, dim1=1, dim2=2)  # as (b, s, i, f)
    here = torch.eye(n, dtype=torch.bool, device=k.device)[..., None]
    scores = torch.where(here, own, past[:, :n])
    earlier = top[:, None] + torch.arange(n + 1, device=k.device)[:, None] * decay  # as (b, s + 1, f)

    def total(scores: Tensor, earlier: Tensor) -> Sums:
        most = torch.maximum(scores.amax(2), earlier)  # as (b, s, f)
        p, rest = torch.exp(scores - most[:, :, None]), torch.exp(earlier - most)
        return (p * v[:, None]).sum(2) + rest * num[:, None], p.sum(2) + rest * den[:, None], most

    numerator, denominator, _ = total(scores, earlier[:, :n])
    after = total(past[:, n:], earlier[:, n:])  # what a token that is still to come would see
    return (numerator / denominator).to(v.dtype), (after[0][:, 0], after[1][:, 0], after[2][:, 0])


class Shift(nn.Module):
    """mu * x[t] + (1 - mu) * x[t-1], a mixture of every component with that of the token before."""

    def __init__(self, d_model: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, 1, d_model))  # in the shape in which checkpoints hold it

    def forward(self, x: Float[Tensor, "b s d"], before: Float[Tensor, "b s d"]) -> Float[Tensor, "b s d"]:
        return x * self.weight + before * (1 - self.weight)


def one_earlier(x: Float[Tensor, "b s d"], last: Float[Tensor, "b d"]) -> Float[Tensor, "b s d"]:
    """x[t-1] at t. last: what came before the first."""
    return torch.cat([last[:, None], x[:, :-1]], 1)


class TimeMixing(nn.Module):
    """LinearOut(sigmoid(LinearR(shift(x))) * wkv(LinearK(shift(x)), LinearV(shift(x)))): the token mixer.

    halvings: in evaluation the output is divided by 2 so many times, see `RwkvModel`.
    """

    wide = dict.fromkeys((torch.float16,), ("decay_log", "first"))

    def __init__(self, *, d_model: int, d_inner: int, halvings: int):
        super().__init__()
        self.halvings, self.mean = halvings, wkv
        self.decay_log = nn.Parameter(torch.empty(d_inner))
        self.first = nn.Parameter(torch.empty(d_inner))
        self.k_shift, self.v_shift, self.r_shift = Shift(d_model), Shift(d_model), Shift(d_model)
        self.k_proj = nn.Linear(d_model, d_inner, bias=False)
        self.v_proj = nn.Linear(d_model, d_inner, bias=False)
        self.r_proj = nn.Linear(d_model, d_inner, bias=False)
        self.o_proj = nn.Linear(d_inner, d_model, bias=False)
        self.numerator, self.denominator, self.largest = Site(), Site(), Site()

    def forward(self, x: Float[Tensor, "b s d"], cache: LayerState | None = None) -> Float[Tensor, "b s d"]:
        """cache: `STATE`, of which this keeps the last four."""
        (last,) = recall(cache, {"time_input": torch.zeros_like(x[:, 0])})  # as (b, d)
        before = one_earlier(x, last)
        k = self.k_proj(self.k_shift(x, before))  # as (b, s, f)
        v = self.v_proj(self.v_shift(x, before))  # as (b, s, f)
        r = torch.sigmoid(self.r_proj(self.r_shift(x, before)))  # as (b, s, f)

        num, den, top = recall(cache, dict(zip(STATE[2:], no_sums(k), strict=True)))  # three of (b, f)
        y, (num, den, top) = self.mean(k, v, -torch.exp(self.decay_log), self.first, (num, den, top))  # as (b, s, f)
        num, den, top = self.numerator(num), self.denominator(den), self.largest(top)
        if cache is not None:
            cache.parts |= {"time_input": x[:, -1], "numerator": num, "denominator": den, "largest": top}
        return halved(self.o_proj(r * y), self)


class ChannelMixing(nn.Module):
    """sigmoid(LinearR(shift(x))) * LinearV(ReLU(LinearK(shift(x)))^2): looks at one token more than an FFN does."""

    def __init__(self, *, d_model: int, d_ff: int, halvings: int):
        super().__init__()
        self.halvings = halvings
        self.k_shift, self.r_shift = Shift(d_model), Shift(d_model)
        self.k_proj = nn.Linear(d_model, d_ff, bias=False)
        self.r_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Float[Tensor, "b s d"], cache: LayerState | None = None) -> Float[Tensor, "b s d"]:
        """cache: `STATE`, of which this keeps the first."""
        (last,) = recall(cache, {"channel_input": torch.zeros_like(x[:, 0])})  # as (b, d)
        before = one_earlier(x, last)
        k = torch.relu(self.k_proj(self.k_shift(x, before))).square()  # as (b, s, f)
        r = torch.sigmoid(self.r_proj(self.r_shift(x, before)))  # as (b, s, d)
        if cache is not None:
            cache.parts["channel_input"] = x[:, -1]
        return r * halved(self.v_proj(k), self)


def halved(y: Float[Tensor, "b s d"], mixer: TimeMixing | ChannelMixing) -> Float[Tensor, "b s d"]:
    """y / 2^halvings, which rounds nothing; y itself in training."""
    return y if mixer.training else y / 2**mixer.halvings
