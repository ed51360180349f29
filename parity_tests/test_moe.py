"""What routers and mixtures must satisfy whatever the weights are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from parity_tests.fixtures.values import integers
from reference_impl.moe import Experts, GroupLimitedRouter, MoE, SoftmaxRouter

D_MODEL, D_FF, N_EXPERTS, N_TOKENS = 6, 10, 7, 12


def values(name: str, *shape: int) -> Tensor:
    return integers(name, shape, 8).double() / 64


def softmax_router(top_k: int) -> SoftmaxRouter:
    router = SoftmaxRouter(d_model=D_MODEL, n_experts=N_EXPERTS, top_k=top_k, normalised=True, rounded=False)
    router.weight.data = values("router", N_EXPERTS, D_MODEL)
    return router


def mixture(top_k: int, jitter: float = 0.0) -> MoE:
    experts = Experts(d_model=D_MODEL, d_ff=D_FF, n_experts=N_EXPERTS, activation="silu")
    experts.gate_up_proj.data = values("gate_up", N_EXPERTS, 2 * D_FF, D_MODEL)
    experts.down_proj.data = values("down", N_EXPERTS, D_MODEL, D_FF)
    return MoE(router=softmax_router(top_k), experts=experts, jitter=jitter)


@pytest.mark.parametrize("top_k", [1, 3, N_EXPERTS])
def test_renormalised_weights_are_the_softmax_of_the_chosen_logits(top_k: int) -> None:
    x, router = values("x", N_TOKENS, D_MODEL), softmax_router(top_k)
    weight, choice = router(x)
    best = (x @ router.weight.T).topk(top_k, -1)
    assert torch.equal(choice, best.indices)
    torch.testing.assert_close(weight, best.values.softmax(-1), rtol=1e-13, atol=0)


@pytest.mark.parametrize("top_k", [1, 3, N_EXPERTS])
def test_the_mixture_is_the_sum_by_scalar_loops(top_k: int) -> None:
    x, moe = values("x", 2, N_TOKENS // 2, D_MODEL), mixture(top_k)
    y = moe(x)
    for row in range(2):
        for at in range(N_TOKENS // 2):
            token = x[row, at]
            weight, choice = moe.router(token[None])
            expected = torch.zeros(D_MODEL, dtype=torch.float64)
            for w, expert in zip(weight[0], choice[0], strict=True):
                gate, up = (moe.experts.gate_up_proj[expert] @ token).chunk(2)
                expected += w * (moe.experts.down_proj[expert] @ (gate * torch.sigmoid(gate) * up))
            torch.testing.assert_close(y[row, at], expected, rtol=1e-12, atol=1e-12)


def test_all_experts_with_no_choice_left_are_weighed_by_the_plain_softmax() -> None:
    x, router = values("x", N_TOKENS, D_MODEL), softmax_router(N_EXPERTS)
    weight, choice = router(x)
    p = (x @ router.weight.T).softmax(-1)
    torch.testing.assert_close(torch.zeros_like(p).scatter(-1, choice, weight), p, rtol=1e-13, atol=0)


def test_jitter_is_for_training_and_leaves_the_input_as_it_was() -> None:
    x, moe = values("x", 2, 6, D_MODEL), mixture(3, jitter=0.25)
    before, calm = x.clone(), mixture(3)(x)
    assert torch.equal(moe.eval()(x), calm)
    torch.manual_seed(3)
    noisy = moe.train()(x)
    assert torch.equal(x, before), "the caller's tensor was changed"
    torch.manual_seed(3)
    assert torch.equal(noisy, mixture(3)(x * torch.empty_like(x).uniform_(0.75, 1.25)))
    assert not torch.allclose(noisy, calm)


@pytest.mark.parametrize("top_groups", [1, 2, 3])
def test_no_more_groups_are_chosen_from_than_allowed(top_groups: int) -> None:
    groups = 3
    router = GroupLimitedRouter(
        d_model=D_MODEL, n_experts=9, top_k=3, n_groups=groups, top_groups=top_groups, normalised=False, scaling=2.0
    )
    router.weight.data = values("grouped", 9, D_MODEL)
    x = values("x", N_TOKENS, D_MODEL)
    weight, choice = router(x)
    p = (x @ router.weight.T).softmax(-1)
    best = p.unflatten(-1, (groups, -1)).amax(-1).topk(top_groups, -1).indices
    for token in range(N_TOKENS):
        assert set((choice[token] // groups).tolist()) <= set(best[token].tolist())
    assert torch.equal(weight, 2.0 * p.gather(-1, choice))
    free = p.topk(3, -1).indices.sort(-1).values
    assert torch.equal(choice.sort(-1).values, free) == (top_groups == groups), "the limit does not show here"
