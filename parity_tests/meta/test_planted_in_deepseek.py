"""Faults planted in transformers' DeepSeek-V3, at run time: each is caught where it is, and called by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from parity_tests.families.deepseek_v3 import FAMILY
from parity_tests.harness import hf, known
from parity_tests.harness.caches import explain_schedule
from parity_tests.harness.case import Case, cache_batches
from parity_tests.harness.names import kind_of
from parity_tests.harness.run import confront, explain
from parity_tests.harness.schedules import SCHEDULES, read_theirs

CASE = Case("deepseek_v3", "yarn", "f64", FAMILY.backends[0])


def attention(model: Any, layer: int) -> Any:
    return model.model.layers[layer].self_attn


def routers(model: Any) -> list[Any]:
    return [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]


def rerouted(model: Any, masked_with: float, weigh_biased: bool) -> None:
    """transformers' router as it would be with another mask for the groups, or weights from the scores that choose."""
    for router in routers(model):
        if not hasattr(router, "num_group"):
            pytest.skip(f"the router of transformers {hf.VERSION} gives something else")

        def forward(x: Any, router: Any = router) -> Any:
            logits = nn.functional.linear(x.flatten(0, -2), router.weight)
            score = logits.sigmoid()
            biased = score + router.e_score_correction_bias
            by_group = biased.unflatten(-1, (router.num_group, -1))
            group = by_group.topk(2, -1).values.sum(-1).topk(router.topk_group, -1).indices
            allowed = torch.zeros(by_group.shape[:-1], dtype=torch.bool).scatter(-1, group, True)
            choice = by_group.masked_fill(~allowed[..., None], masked_with).flatten(-2).topk(router.top_k, -1).indices
            weight = (biased if weigh_biased else score).gather(-1, choice)
            weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * router.routed_scaling_factor
            return logits, weight, choice

        router.forward = forward


def bias_ignored(model: Any) -> None:
    for router in routers(model):
        router.e_score_correction_bias.zero_()


def bias_weighs(model: Any) -> None:
    rerouted(model, -torch.inf, weigh_biased=True)


def groups_masked_with_zero(model: Any) -> None:
    rerouted(model, 0.0, weigh_biased=False)


def mscale_lost(model: Any) -> None:
    attention(model, 1).scaling = attention(model, 1).qk_head_dim ** -0.5


def halves_for_pairs(model: Any) -> None:
    model.config.rope_interleave = False


def latent_norm_with_the_models_eps(model: Any) -> None:
    attention(model, 1).kv_a_layernorm.variance_epsilon = model.config.rms_norm_eps


def shared_expert_lost(model: Any) -> None:
    model.model.layers[2].mlp.shared_experts.forward = torch.zeros_like


# variant, where it has to be caught (the first of these that the release shows), and what it has to be called
FAULTS: dict[Callable[[Any], None], tuple[str, str, str | None]] = {
    bias_ignored: ("yarn", "layers.1.ffn.router.choice", "correction bias ignored"),
    bias_weighs: ("yarn", "layers.1.ffn.router.weights", "correction bias added to the weights"),
    groups_masked_with_zero: ("negative-bias", "layers.1.ffn.router.choice", "groups masked with 0 instead of -inf"),
    mscale_lost: ("yarn", "layers.1.attn.probs", "softmax scale without mscale"),
    halves_for_pairs: ("yarn", "layers.0.attn.rope_key layers.0.attn.probs", "halves and pairs confused in RoPE"),
    latent_norm_with_the_models_eps: ("yarn", "layers.1.attn.kv_norm", "latent norms use rms_norm_eps"),
    shared_expert_lost: ("yarn", "layers.2.ffn.shared", None),
}


@pytest.fixture
def build() -> Callable[[Case], nn.Module]:
    """Models of transformers of a test's own."""
    if not hf.has_class(FAMILY.hf_class):
        pytest.skip(f"transformers {hf.VERSION} has no {FAMILY.hf_class}")
    return lambda case: hf.build(FAMILY.hf_class, case.source, case.precision, case.backend)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_caught_at_its_site_and_called_by_its_name(fault: Callable[[Any], None], build: Callable[[Case], Any]) -> None:
    variant, sites, name = FAULTS[fault]
    case = replace(CASE, variant=variant)
    theirs = build(case)
    fault(theirs)
    run = confront(case, theirs)
    unexplained = {kind for one in known.active(case) if one.explained is None for kind in one.sites}
    first = next((difference for difference in run.differences() if difference.kind not in unexplained), None)
    assert first is not None
    assert first.site == next(site for site in sites.split() if kind_of(site) not in unexplained)
    assert first.input_error is not None
    assert first.input_error < 1e-13
    found = explain(run, first)
    assert (found and found[0].name) == name


def test_a_cache_in_the_wrong_order_is_caught_and_explained(
    build: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, update = build(CASE), transformers.DynamicCache.update

    def reversed_order(self: Any, keys: Any, values: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        start, new = self.get_seq_length(layer_idx), keys.shape[-2]
        held = update(self, keys, values, layer_idx, *args, **kwargs)
        if start:
            for tensor in held:
                tensor.copy_(torch.cat([tensor[..., -new:, :], tensor[..., :-new, :]], -2))
        return held

    run = confront(CASE, theirs)
    batches = cache_batches(run.case)
    monkeypatch.setattr(transformers.DynamicCache, "update", reversed_order)
    logits = [read_theirs(theirs, "f64", batch, SCHEDULES["steps"])[0] for batch in batches]
    monkeypatch.undo()
    found = explain_schedule(run.case, "steps", logits)
    assert found is not None
    assert found.name == "the cache puts new keys before the old"
