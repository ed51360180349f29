"""torch's own modules as twins: filled with values that can notice, and the reference's modules with the same weights.

torch's masks say where *not* to look, or what to add; the reference has `visible` for the one and `bias` for the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from parity_tests.fixtures.values import Fill, around_one, bias, fill, integers, linear
from parity_tests.harness.compare import DTYPES, under_lens, within_budget
from weight_mapping.loading import parameters_of
from weight_mapping.plan import plan
from weight_mapping.rules import Table

FILL = (
    ("*bias", bias),
    ("*norm*.weight", around_one),
    ("*in_proj_weight", linear(1.25)),  # scores of standard deviation 2: peaked, and not yet chaotic
    ("*[qk]_proj_weight", linear(1.25)),
    ("*weight", linear(1.0)),
)

M = TypeVar("M", bound=nn.Module)


def filled(module: M, precision: str, table: Sequence[tuple[str, Fill]] = FILL) -> M:
    """The module with deterministic values, the same in every precision, in evaluation mode."""
    module.load_state_dict(fill({name: t.shape for name, t in module.state_dict().items()}, table))
    return module.to(DTYPES[precision]).eval()


def carried(twin: nn.Module, table: Table, mine: M, precision: str) -> M:
    """`mine` with the weights of `twin`, in this precision, in evaluation mode."""
    mine.to(DTYPES[precision]).eval()
    slots = parameters_of(mine)  # what is tied is given once
    for name, value in plan(table, slots).forward(parameters_of(twin)).items():
        slots[name].data.copy_(value)
    return mine


def vectors(name: str, *shape: int) -> Tensor:
    """Components of scale 1, exact in every precision."""
    return integers(name, shape, 8) / 64


@dataclass(frozen=True, kw_only=True)
class Mask:
    """One restriction of attention in both languages: what torch is given, and `visible` and `bias` for the reference."""

    attn: Tensor | None = None
    padding: Tensor | None = None
    causal: bool = False
    visible: Tensor
    bias: Tensor | None = None

    @property
    def floats(self) -> bool:
        """Whether finite numbers are added to the scores."""
        return self.bias is not None

    def to(self, dtype: torch.dtype) -> Mask:
        """With what is added in this dtype."""

        def cast(x: Tensor | None) -> Tensor | None:
            return x.to(dtype) if x is not None and x.is_floating_point() else x

        return replace(self, attn=cast(self.attn), padding=cast(self.padding), bias=cast(self.bias))

    def first_row(self, n_heads: int) -> Mask:
        """For the first row of the batch alone."""
        per_head = self.attn is not None and self.attn.ndim == 3
        return Mask(
            attn=self.attn[:n_heads] if self.attn is not None and per_head else self.attn,
            padding=self.padding[:1] if self.padding is not None else None,
            causal=self.causal,
            visible=self.visible[:1],
            bias=self.bias[:1] if self.bias is not None else None,
        )


@cache
def masks(b: int, h: int, s: int, t: int) -> dict[str, Mask]:
    """Every way in which torch's attention of b rows, h heads, s queries and t keys can be restricted.

    The first key is always there to be seen: what torch makes of a query that sees none depends on its backend.
    """
    barred, barred_by_head = (integers(f"barred {shape}", shape, 8) > 20 for shape in ((s, t), (b * h, s, t)))
    barred[..., 0] = barred_by_head[..., 0] = False
    padding = torch.arange(t) >= t - torch.tensor([3, 0, 2]).repeat(b)[:b, None]
    ahead = torch.arange(t) > torch.arange(s)[:, None]
    added, added_by_head, added_to_keys = (vectors("added", *shape) for shape in ((s, t), (b * h, s, t), (b, t)))
    minus_infinity = torch.zeros(s, t).masked_fill(ahead, -torch.inf)

    all_, real, past = torch.ones(1, 1, 1, t, dtype=torch.bool), ~padding[:, None, None], ~ahead[None, None]
    open_, open_by_head = ~barred[None, None], ~barred_by_head.unflatten(0, (b, h))
    plus, by_head, to_keys = added[None, None], added_by_head.unflatten(0, (b, h)), added_to_keys[:, None, None]
    return {
        "none": Mask(visible=all_),
        "bool": Mask(attn=barred, visible=open_),
        "bool_by_head": Mask(attn=barred_by_head, visible=open_by_head),
        "float": Mask(attn=added, visible=all_, bias=plus),
        "float_by_head": Mask(attn=added_by_head, visible=all_, bias=by_head),
        "padding": Mask(padding=padding, visible=real),
        "padding_float": Mask(padding=added_to_keys, visible=all_, bias=to_keys),
        "bool_and_padding": Mask(attn=barred, padding=padding, visible=open_ & real),
        "bool_by_head_and_padding": Mask(attn=barred_by_head, padding=padding, visible=open_by_head & real),
        "float_and_padding_float": Mask(attn=added, padding=added_to_keys, visible=all_, bias=plus + to_keys),
        "float_by_head_and_padding_float": Mask(
            attn=added_by_head, padding=added_to_keys, visible=all_, bias=by_head + to_keys
        ),
        "causal": Mask(attn=ahead, causal=True, visible=past),
        "causal_float": Mask(attn=minus_infinity, causal=True, visible=past),
        "causal_unsaid": Mask(attn=minus_infinity, visible=past),
        "causal_and_padding": Mask(attn=ahead, padding=padding, causal=True, visible=past & real),
    }


@contextmanager
def fast_path(on: bool) -> Iterator[None]:
    """torch's fused kernels for evaluation, which see other code than training does, allowed or not."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(on)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class Judge:
    """Judges what both sides say, and puts the figures on the test's record.

    torch has no casts of its own, and so needs no lens: float64 against the bar, all else by the budget.
    """

    def __init__(self, request: pytest.FixtureRequest):
        self.node = request.node

    def __call__(self, site: str, theirs: Tensor, ours: Tensor, oracle: Tensor | None = None) -> None:
        """oracle: the reference in float64, which less than that is measured by."""
        if oracle is None or ours.dtype == torch.float64:
            outcome = under_lens(theirs.detach(), ours.detach())
        else:
            tokens = (x.detach().flatten(0, -2) for x in (theirs, ours, oracle))
            (outcome,) = within_budget([(next(tokens), next(tokens), next(tokens))])
        self.node.user_properties.append(("figures", (site, outcome.error, outcome.bar)))
        assert outcome.verdict == "same", f"{site}: {outcome}"


def gradients_differ(
    twin: nn.Module, table: Table, mine: nn.Module, ours: Tensor, theirs: Tensor, inputs: Mapping[str, Tensor]
) -> float:
    """Largest difference of any parameter's or input's gradient, relative to the global norm, of one scalar of the output."""
    weights = vectors("of the output", *ours.shape).to(ours.dtype)
    named, their_named = parameters_of(mine), parameters_of(twin)
    g = torch.autograd.grad((ours * weights).sum(), [*named.values(), *inputs.values()])
    their_g = torch.autograd.grad((theirs * weights).sum(), [*their_named.values(), *inputs.values()])
    n = len(named)
    carried_g = plan(table, named).forward(dict(zip(their_named, their_g[: len(their_named)], strict=True)))
    pairs = [(carried_g[name], g[i]) for i, name in enumerate(named)]
    pairs += list(zip(their_g[len(their_named) :], g[n:], strict=True))
    norm = torch.linalg.vector_norm(torch.cat([ours.flatten() for _, ours in pairs]))
    assert norm > 0
    return max(float((theirs - ours).abs().max() / norm) for theirs, ours in pairs)


