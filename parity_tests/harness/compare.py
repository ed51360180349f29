"""Two tensors in, a verdict out. No constant here is tuned."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

BAR = 1e-11
"""Under the lens, as the largest difference relative to the largest value. Rounding stays a hundredfold below; the smallest
change of the mathematics ever seen between two releases is ten million times above."""

ULPS = 1
"""What an error budget grants beyond twice the reference's own error, in units in the last place."""

UNINFORMATIVE = "the budget is above the value itself, so that it would pass anything"

DTYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@dataclass(frozen=True)
class Outcome:
    """How one site came out. error and bar: relative, see `under_lens` and `within_budget`. note: why, in words. raised: the
    exception that there was instead of a value.
    """

    error: float
    bar: float
    bits_equal: bool
    verdict: str  # same | differs | known | absent | not covered
    note: str = ""
    worst: tuple[tuple[int, ...], float, float] | None = None
    raised: str | None = None

    @property
    def ratio(self) -> float:
        """error / bar: above 1 is a difference."""
        return self.error / self.bar if self.bar else (math.inf if self.error else 0.0)

    def known(self, note: str) -> Outcome:
        """The same, as a difference that the family's record lists."""
        return replace(self, verdict="known", note=note)


def absent(note: str) -> Outcome:
    """The value does not exist on transformers' side."""
    return Outcome(math.nan, math.nan, False, "absent", note)


def not_covered(note: str) -> Outcome:
    """A comparison that could say nothing."""
    return Outcome(math.nan, math.nan, False, "not covered", note)


def select(x: Tensor, axes: str, keep: Mapping[str, Tensor]) -> Tensor:
    """The entries of `x` that have a defined value: rows of real queries, of a real memory and of real keys.

    keep: by axis, "s" (b, s) and "m" (b, m): True where the token is real. Keys "t" are those of "s", or
    the last of them. An axis "n" lists all (b, s) tokens. An axis of size 1 where those have more is broadcast.
    """
    names = axes.split()
    if names[0] == "n":
        return x[keep["s"].flatten()]
    for letter, real in (("s", keep.get("s")), ("m", keep.get("m")), ("t", keep.get("s"))):
        if letter in names and "b" in names and real is not None:  # what a real query makes of padding is defined: nothing
            x = x.movedim((names.index("b"), names.index(letter)), (0, 1))
            x = x.expand(real.shape[0], -1, *x.shape[2:]) if x.shape[0] == 1 else x
            return x[real[:, real.shape[1] - x.shape[1] :] if letter == "t" else real]
    return x


def last_keys(x: Tensor, axes: str, like: Tensor) -> Tensor:
    """Of keys or values, as many as `like` has, the last ones: a layer with a window keeps no others."""
    if "t" not in axes or "s" in axes:
        return x
    place = axes.split().index("t")
    surplus = max(x.shape[place] - like.shape[place], 0)
    return x.narrow(place, surplus, x.shape[place] - surplus)


def _spread(theirs: Tensor, ours: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.complex128 if ours.is_complex() else torch.float64
    return theirs.to(wide), ours.to(wide)


def largest_relative(theirs: Tensor, ours: Tensor) -> float:
    """max |theirs - ours| / max |ours|: a single wrong element counts in full."""
    a, b = _spread(theirs, ours)
    scale = b.abs().max().item() if b.numel() else 0.0
    difference = (a - b).abs().max().item() if b.numel() else 0.0
    return difference / scale if scale else difference


def l2_relative(theirs: Tensor, ours: Tensor) -> float:
    """|theirs - ours| / |ours| in the Euclidean norm: what rounding adds up to."""
    return math.sqrt(_squared_by_token(theirs, ours).sum().item())


def _squared_by_token(theirs: Tensor, ours: Tensor) -> Tensor:
    """What each token has in the square of that."""
    a, b = (x.flatten(1) if x.dim() > 1 else x.reshape(-1, 1) for x in _spread(theirs, ours))
    scale = torch.linalg.vector_norm(b)
    return (torch.linalg.vector_norm(a - b, dim=-1) / torch.where(scale > 0, scale, 1.0)) ** 2


def _worst(theirs: Tensor, ours: Tensor) -> tuple[tuple[int, ...], float, float]:
    a, b = _spread(theirs, ours)
    place = tuple(int(i) for i in torch.unravel_index((a - b).abs().nan_to_num(math.inf).argmax(), a.shape))
    return place, float(theirs[place].real), float(ours[place].real)


def misfit(theirs: Tensor, ours: Tensor) -> str | None:
    """What makes two tensors incomparable, in words: dtype first, then shape, then NaN and infinity."""
    if theirs.dtype != ours.dtype:
        return f"transformers gives {theirs.dtype}, the reference {ours.dtype}".replace("torch.", "")
    if theirs.shape != ours.shape:
        return f"transformers gives the shape {tuple(theirs.shape)}, the reference {tuple(ours.shape)}"
    for side, x in (("transformers", theirs), ("the reference", ours)):
        if not torch.isfinite(x).all():
            return f"{side} has {int((~torch.isfinite(x)).sum())} values that are not finite"
    return None


def refused(note: str, raised: str | None = None) -> Outcome:
    """A difference that is not one of degree; or an exception of transformers'."""
    return Outcome(math.inf, 0.0, False, "differs", note, raised=raised)


def measured(error: float, bar: float, note: str = "") -> Outcome:
    """A figure against its bar, where no two tensors are at hand."""
    same = error <= bar
    return Outcome(error, bar, error == 0, "same" if same else "differs", "" if same else f"{note} is off by {error:.1e}")


def _judge(theirs: Tensor, ours: Tensor, error: float, bar: float) -> Outcome:
    bits = torch.equal(theirs, ours)
    if error <= bar:
        return Outcome(error, bar, bits, "same")
    return Outcome(error, bar, bits, "differs", worst=_worst(theirs, ours))


def under_lens(theirs: Tensor, ours: Tensor) -> Outcome:
    """Same mathematics? Relative to the largest value, against `BAR`. Booleans and integers must be equal."""
    if note := misfit(theirs, ours):
        return refused(note)
    if not (ours.is_floating_point() or ours.is_complex()):
        wrong = (theirs != ours).double().mean().item() if ours.numel() else 0.0
        return _judge(theirs.long(), ours.long(), wrong, 0.0)
    return _judge(theirs, ours, largest_relative(theirs, ours), BAR)


Sides = tuple[Tensor, Tensor, Tensor]
"""What transformers, the reference and the float64 reference give at one place for one input; the first axis lists tokens."""


def within_budget(inputs: Sequence[Sides]) -> list[Outcome]:
    """As close to the truth as the reference is? error(transformers) <= 2 * error(reference) + `ULPS`, in relative L2,
    both measured against the float64 reference on the same weights and the same input.

    The budget is of the place: the reference's error where it is largest, for of a handful of numbers it may be right by
    luck. And the one token of all inputs that transformers is furthest off at is set aside: where it is ill-conditioned, a
    single rounding decides. What a single token shows of the mathematics is for the lens.
    """
    if not all(ours.is_floating_point() for _, ours, _ in inputs):
        return [under_lens(theirs, ours) for theirs, ours, _ in inputs]
    notes = [misfit(theirs, ours) for theirs, ours, _ in inputs]
    outcomes = iter(_budgeted([sides for sides, note in zip(inputs, notes, strict=True) if note is None]))
    return [next(outcomes) if note is None else refused(note) for note in notes]


def _budgeted(inputs: Sequence[Sides]) -> Iterator[Outcome]:
    bars = [2 * l2_relative(ours, oracle) + ULPS * torch.finfo(ours.dtype).eps for _, ours, oracle in inputs]
    bar = max((bar for bar in bars if bar < 1), default=math.nan)
    errors = [_squared_by_token(theirs, oracle) for theirs, _, oracle in inputs]
    if sum(map(len, errors)) > 1:
        furthest = max((error for error in errors if len(error)), key=lambda error: error.max().item())
        furthest[furthest.argmax()] = 0.0
    for (theirs, ours, _), own, squared in zip(inputs, bars, errors, strict=True):
        error = math.sqrt(squared.sum().item())
        if own < 1:
            yield _judge(theirs, ours, error, bar)
        else:  # an answer of nothing but zeros would pass
            yield Outcome(error, own, torch.equal(theirs, ours), "not covered", UNINFORMATIVE)


def in_precision(inputs: Sequence[Sides], *, lens: bool) -> list[Outcome]:
    """One place for several inputs, under the lens or by the budget."""
    return [under_lens(theirs, ours) for theirs, ours, _ in inputs] if lens else within_budget(inputs)


def choices(theirs: Tensor, ours: Tensor, oracle: Tensor, router: Any) -> Outcome:
    """Did transformers choose otherwise only where rounding can tip the balance? error: the share of tokens where not.

    theirs (n, x): True for the experts it chose. ours, oracle (n, x): the scores that decide, in this precision and in
    float64. router: chooses experts (n, k) by such scores, and has its experts in `n_groups` groups or none. A choice is
    one of rounding when moving each score by no more than twice the reference's own error brings it about.
    """
    slack = 2 * (ours.double() - oracle).abs().max() + ULPS * torch.finfo(ours.dtype).eps * oracle.abs().max()
    grouped = theirs.unflatten(-1, (getattr(router, "n_groups", 1), -1))
    neighbours = grouped.any(-1, keepdim=True).expand_as(grouped).flatten(-2)  # in a group where something was chosen
    attempts = [ours.double()]
    for up in (slack, -slack, -slack / 8):  # down, and little: where what is masked with 0 wins over scores just below it
        for shift in (-slack, 0 * slack, slack):
            attempts.append(torch.where(theirs, oracle + up, oracle + torch.where(neighbours, shift, -up)))
    reached = [(dense(router.choose(scores), theirs.shape[-1]) == theirs).all(-1) for scores in attempts]
    equal, wrong = bool(reached[0].all()), (~torch.stack(reached).any(0)).double().mean().item()
    note = "" if equal else f"{int((~reached[0]).sum())} of {len(theirs)} tokens choose otherwise"
    return Outcome(wrong, 0.0, equal, "differs" if wrong else "same", note)


def dense(choice: Tensor, n_experts: int, weight: Tensor | None = None) -> Tensor:
    """(n, k) experts, in any order, as (n, x): True where chosen, or its weight there and 0 elsewhere."""
    empty = torch.zeros(len(choice), n_experts, dtype=torch.bool if weight is None else weight.dtype, device=choice.device)
    return empty.scatter(-1, choice, True if weight is None else weight)


def worse(a: Outcome, b: Outcome) -> Outcome:
    """The one to report of two outcomes of one site; bits are equal only where both are."""
    rank = ("absent", "not covered", "same", "known", "differs").index
    key_a, key_b = (rank(a.verdict), a.ratio), (rank(b.verdict), b.ratio)
    chosen = a if key_a >= key_b else b
    both = a.bits_equal and b.bits_equal
    return chosen if chosen.bits_equal == both else Outcome(**{**vars(chosen), "bits_equal": both})
