"""What training minimises where there are experts: the load-balancing loss, alone and in the total."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from parity_tests.harness import hf, ours
from parity_tests.harness.case import Case, batches_of, cache_batches, twin
from parity_tests.harness.compare import largest_relative, measured, under_lens
from parity_tests.harness.points import config_of
from parity_tests.harness.recorder import Recorder
from parity_tests.harness.shapes import unchecked
from parity_tests.harness.training import GRADIENT_BAR, labels_of, sides
from reference_impl.losses import IGNORED, language_model_loss, load_balancing_loss

EXPERTS, TOP_K, TOKENS = 5, 2, 20


def routed(
    model: Any, routers: list[str], inputs: Mapping[str, Tensor], cache: Any = None
) -> tuple[Tensor, list[Tensor]]:
    """The reference's logits, and those of its routers, with their gradients."""
    found: list[Tensor] = []
    sites = [model.get_submodule(f"{router}.logits") for router in routers]
    handles = [site.register_forward_hook(lambda module, args, output: found.append(output)) for site in sites]
    try:
        with unchecked():
            return ours.read(model, inputs, cache), found
    finally:
        for handle in handles:
            handle.remove()


def _gradient(router: Any) -> Tensor:
    return router.weight.grad


@pytest.mark.level("training")
@pytest.mark.precisions("f64")
@pytest.mark.one_backend
@pytest.mark.tiny
@pytest.mark.has("aux_loss_coef")
@pytest.mark.parametrize("batch_name", ["plain", "padded"])
def test_load_balancing(case: Case, batch_name: str, recorder: Recorder) -> None:
    """The loss, the total that it is part of, and the gradients of all routers; with padding, which does not count, and
    without a mask.
    """
    run = recorder.run(case, "accumulated", "load-balancing")
    model, theirs = sides(case)
    batch = next(batch for batch in batches_of(case) if batch.name == batch_name)
    labels, config = labels_of(case, batch), config_of(case)
    routers = {unit.name: unit.hf for unit in run.units if unit.routes is not None}

    logits, choices = routed(model, list(routers), batch.inputs)
    balance = load_balancing_loss(choices, config.top_k, batch.real)
    total = language_model_loss(logits, labels) + config.aux_loss_coef * balance
    total.backward()
    output = hf.run(theirs, "f64", batch.inputs, gradients=True, labels=labels, output_router_logits=True)
    output.loss.backward()

    recorder.check(case, "load-balancing", under_lens(output.aux_loss.detach(), balance.detach()))
    recorder.check(case, "total-loss", under_lens(output.loss.detach(), total.detach()))
    errors = [
        largest_relative(_gradient(hf.module_at(theirs, hf_name)), _gradient(model.get_submodule(name)))
        for name, hf_name in routers.items()
    ]
    recorder.check(case, "router-gradients", measured(max(errors), GRADIENT_BAR, "of the routers"))


@pytest.mark.level("training")
@pytest.mark.precisions("f64")
@pytest.mark.one_backend
@pytest.mark.tiny
@pytest.mark.has("aux_loss_coef")
def test_load_balancing_over_a_cache(case: Case, recorder: Recorder) -> None:
    """The loss of the tokens that a call reads, whatever was read before; without a mask, and with one that hides nothing."""
    run = recorder.run(case, "accumulated", "load-balancing.step")
    theirs, ids = twin(case), cache_batches(case)[0].inputs["ids"]
    before, new = {"ids": ids[:, :6]}, {"ids": ids[:, 6:]}
    routers = [unit.name for unit in run.units if unit.routes is not None]

    def balance(model: Any) -> Tensor:
        cache = ours.new_cache(model)
        with torch.no_grad():
            routed(model, routers, before, cache)
            return load_balancing_loss(routed(model, routers, new, cache)[1], config_of(case).top_k)

    for site, mask in (("load-balancing.step", {}), ("load-balancing.cached", {"real": torch.ones_like(ids).bool()})):
        held = hf.cache_of(hf.run(theirs, "f64", before))
        with recorder.crashing(case, site):
            loss = hf.run(theirs, "f64", new | mask, cache=held, output_router_logits=True).aux_loss
        recorder.judge(case, site, lambda mine, loss=loss: under_lens(loss, balance(mine())))


def uniform(n: int) -> Tensor:
    """Router logits (n, x) whose choices run round all experts."""
    first = torch.arange(n)[:, None]
    chosen = torch.cat([first, first + 1], -1) % EXPERTS
    return torch.zeros(n, EXPERTS, dtype=torch.float64).scatter(-1, chosen, 1.0)


def test_it_is_least_where_all_experts_are_chosen_alike() -> None:
    even = load_balancing_loss([uniform(TOKENS)], TOP_K)
    assert even.item() == pytest.approx(TOP_K, rel=1e-14)
    tilted = uniform(TOKENS) + torch.linspace(0, 2, EXPERTS, dtype=torch.float64)
    assert load_balancing_loss([tilted], TOP_K) > even + 0.1
    always = torch.tensor([[9.0, 8.0, 0.0, 0.0, 0.0]], dtype=torch.float64).expand(TOKENS, -1)
    assert load_balancing_loss([always], TOP_K).item() == pytest.approx(EXPERTS * always[0].softmax(0)[:TOP_K].sum().item())


def test_it_is_the_formula_by_scalar_loops() -> None:
    layers = [uniform(6) * 0.3 + torch.arange(6.0, dtype=torch.float64)[:, None] * torch.arange(EXPERTS).sin(), uniform(6)]
    real = torch.tensor([[True, True, False], [True, True, True]])
    kept = [row for logits in layers for row, keep in zip(logits, real.flatten(), strict=True) if keep]
    expected = 0.0
    for expert in range(EXPERTS):
        times = sum(int(expert in row.topk(TOP_K).indices.tolist()) for row in kept) / len(kept)
        expected += EXPERTS * times * sum(row.softmax(0)[expert].item() for row in kept) / len(kept)
    assert load_balancing_loss(layers, TOP_K, real).item() == pytest.approx(expected, rel=1e-14)
    assert load_balancing_loss(layers, TOP_K).item() != pytest.approx(expected, rel=1e-4), "padding does not show here"


def test_language_model_loss_by_scalar_loops() -> None:
    logits = torch.linspace(-2, 3, 2 * 4 * 7, dtype=torch.float64).sin().view(2, 4, 7) * 3
    labels = torch.tensor([[0, 3, IGNORED, 6], [IGNORED, 2, 5, IGNORED]])
    counted = [(0, 1), (0, 3), (1, 1), (1, 2)]  # the first token of a row is predicted by none
    expected = [-F.log_softmax(logits[row, at - 1], -1)[labels[row, at]].item() for row, at in counted]
    assert language_model_loss(logits, labels).item() == pytest.approx(sum(expected) / len(expected), rel=1e-14)
