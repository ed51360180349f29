"""Behind a known difference nothing else hides: an unrelated fault fails at every site without a unit, in every variant that
has a known difference in any release. Only what a record lists by name, and no deviation explains, is let through there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from parity_tests import (
    test_cache,
    test_generation,
    test_invariants,
    test_losses,
    test_models,
    test_training,
    test_ways_in,
)
from parity_tests.families import FAMILIES
from parity_tests.harness import hf, known, memory
from parity_tests.harness.case import Case, twin
from parity_tests.harness.compare import refused
from parity_tests.harness.points import config_of, usual
from parity_tests.harness.record import Known
from parity_tests.harness.recorder import Recorder
from parity_tests.harness.report import Result
from parity_tests.harness.training import trained
from parity_tests.meta.test_records import appears

SITES = (
    "config",
    *("dynamic.steps", "dynamic.chunks", "static.steps", "static.chunks", "dynamic.steps.held", "dynamic.chunks.held"),
    *("greedy", "prefilled", "left-padded", "left-padded.alone", "left-padded.equals-alone", "eos", "repeated"),
    *("loss", "trainable", "gradients", "step", "dropout", "load-balancing", "total-loss", "router-gradients"),
    *("load-balancing.step", "load-balancing.cached", "padded-alone", "padding-content", "causality", "twice", "shifted"),
    *("implementations", "saved", "cast", "inputs_embeds", "mask-4d.bool", "mask-4d.float", "packed.bare"),
    *("packed.with-cache", "logits_to_keep.1", "logits_to_keep.5", "logits_to_keep.indices", "positions"),
)
"""Every site that has no unit."""


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """The rules are kept by case, and here the release changes under them."""
    yield
    known.active.cache_clear()
    known.departures.cache_clear()


def recording(request: pytest.FixtureRequest) -> tuple[Recorder, list[Result]]:
    """A recorder that keeps its results to itself."""
    results: list[Result] = []
    return Recorder(request, results), results


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fault_fails_at_every_site_in_every_release(
    family: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, (recorder, _) = FAMILIES[family], recording(request)
    releases = {known.since for known in record.known} | {hf.VERSION, "4.57.6"}
    for release in sorted(releases):
        monkeypatch.setattr(hf, "VERSION", release)
        known.active.cache_clear()
        known.departures.cache_clear()
        for variant in sorted({name for one in record.known for name in appears(record, one)}):
            for backend in record.backends:
                case = Case(family, variant, "f64", backend)
                listed = {site for one in known.active(case) if one.explained is None for site in one.sites}
                for site, raised in product(SITES, (None, "OverflowError")):
                    excuse = known.excuse(case, site, refused("a planted fault", raised))
                    assert excuse is None or (raised is None and site in listed), f"{excuse} hides it in {case} at {site}"
                _fails(recorder, case, next(site for site in SITES if site not in listed))


def _fails(recorder: Recorder, case: Case, site: str) -> None:
    with pytest.raises(pytest.fail.Exception, match="a planted fault"):
        recorder.check(case, site, refused("a planted fault"))
    with pytest.raises(pytest.fail.Exception, match="a planted fault"):
        recorder.judge(case, site, lambda ours: refused("a planted fault"))


# --- the same by faults in transformers itself, behind the differences that the installed release has ---

Fault = Callable[[dict[str, Any], Any], None]
"""Changes what a forward gave, by what it was given."""


def tokens_of(given: dict[str, Any]) -> Tensor | None:
    return given.get("decoder_input_ids", given.get("input_ids"))


def _scaled(output: Any) -> None:
    with torch.no_grad():
        hf.logits_of(output).mul_(1 + 1e-6)


def always(given: dict[str, Any], output: Any) -> None:
    _scaled(output)


def in_steps(given: dict[str, Any], output: Any) -> None:
    ids = tokens_of(given)
    if ids is not None and ids.shape[1] == 1:
        _scaled(output)


def other_tokens(given: dict[str, Any], output: Any) -> None:
    with torch.no_grad():
        logits = hf.logits_of(output)
        logits.copy_(logits.roll(1, -1))


def of_the_last_token(given: dict[str, Any], output: Any) -> None:
    ids = tokens_of(given)
    if ids is not None:
        with torch.no_grad():
            hf.logits_of(output).add_(1e-6 * ids[:, -1, None, None])


def of_all_tokens(given: dict[str, Any], output: Any) -> None:
    """Padding included."""
    whole = [x for x in given.values() if isinstance(x, Tensor) and not x.is_floating_point()]
    with torch.no_grad():
        hf.logits_of(output).add_(1e-6 * sum(int(x.sum()) for x in whole))


def held_wrong(given: dict[str, Any], output: Any) -> None:
    held = hf.cached(hf.cache_of(output), 0)
    if held is not None:
        held[-1].mul_(1 + 1e-6)


class EverySecond:
    """Another result at each call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, given: dict[str, Any], output: Any) -> None:
        self.calls += 1
        with torch.no_grad():
            hf.logits_of(output).mul_(1 + 1e-6 * self.calls)


PLANTED: dict[str, tuple[Callable[..., None], dict[str, Any], Callable[[], Fault]]] = {
    "dynamic.steps": (test_cache.test_cache, {"schedule": "steps", "kind": "dynamic"}, lambda: in_steps),
    "static.steps": (test_cache.test_cache, {"schedule": "steps", "kind": "static"}, lambda: in_steps),
    "dynamic.chunks": (test_cache.test_cache, {"schedule": "chunks", "kind": "dynamic"}, lambda: always),
    "dynamic.steps.held": (test_cache.test_what_the_cache_holds, {"schedule": "steps"}, lambda: held_wrong),
    "greedy": (test_generation.test_greedy, {}, lambda: other_tokens),
    "prefilled": (test_generation.test_from_a_prefilled_cache, {}, lambda: other_tokens),
    "left-padded": (test_generation.test_a_left_padded_row_equals_the_row_alone, {}, lambda: other_tokens),
    "eos": (test_generation.test_stops_at_eos, {}, lambda: other_tokens),
    "repeated": (test_models.test_a_longer_call_leaves_nothing_behind, {}, EverySecond),
    "padded-alone": (test_invariants.test_a_padded_row_is_the_row_alone, {}, lambda: of_all_tokens),
    "padding-content": (test_invariants.test_what_padding_holds_changes_nothing, {}, lambda: of_all_tokens),
    "causality": (test_invariants.test_the_future_changes_nothing, {}, lambda: of_the_last_token),
    "twice": (test_invariants.test_the_same_call_twice_and_its_inputs_untouched, {}, EverySecond),
    "shifted": (test_invariants.test_positions_shifted, {}, lambda: of_all_tokens),
    "inputs_embeds": (test_ways_in.test_embeddings_instead_of_ids, {}, lambda: always),
    "mask-4d.bool": (test_ways_in.test_a_mask_of_four_dimensions, {"dtype": "bool"}, lambda: always),
    "mask-4d.float": (test_ways_in.test_a_mask_of_four_dimensions, {"dtype": "float"}, lambda: always),
    "packed.bare": (test_ways_in.test_several_texts_in_one_row, {"use_cache": False}, lambda: always),
    "packed.with-cache": (test_ways_in.test_several_texts_in_one_row, {"use_cache": True}, lambda: always),
    "logits_to_keep.5": (test_ways_in.test_some_logits_only, {"wanted": 5}, lambda: always),
    "positions": (test_ways_in.test_positions_are_given_or_counted, {}, lambda: always),
}
"""By site: the test that compares it, and a fault of which it has to fail."""

NEEDS = {"static.steps": lambda case: "static" in case.record.caches}


def affected() -> list[Case]:
    """For each difference that the installed release has and that is more than another way in, one variant that has it."""
    found: dict[str, Case] = {}
    for family, record in FAMILIES.items():
        for backend in record.backends:
            for variant in record.variants:
                case = Case(family, variant, "f64", backend)
                if "f64" in backend.precisions and backend.serves(variant):
                    for one in known.active(case):
                        if not one.local and one.raises is None:
                            found.setdefault(one.name, case)
    return list(dict.fromkeys(found.values()))


def _listed(case: Case, site: str) -> Known | None:
    return next((one for one in known.active(case) if one.explained is None and site in one.sites), None)


def _run(test: Callable[..., None], request: pytest.FixtureRequest, case: Case, options: dict[str, Any]) -> None:
    recorder, _ = recording(request)
    test(case=case, recorder=recorder, **options)


@pytest.mark.parametrize("site", PLANTED)
@pytest.mark.parametrize("behind", affected(), ids=str)
def test_a_fault_planted_in_transformers_fails_behind_what_is_known(
    behind: Case, site: str, request: pytest.FixtureRequest
) -> None:
    case, (test, options, fault) = behind, PLANTED[site]
    if not NEEDS.get(site, lambda case: True)(case) or (_reads_no_text(case) and site not in ("twice", "repeated")):
        pytest.skip("such a model is not asked this")
    if _listed(case, site) is not None:
        pytest.skip("a difference of its own, which no deviation explains")
    if not usual(case) and test.__module__ == test_generation.__name__:
        pytest.skip("this is asked of another backend")
    model, planted = twin(case), fault()
    memory.forget(model)
    _run(test, request, case, options)  # as it is, it passes, or this model is not asked
    memory.forget(model)
    handle = model.register_forward_hook(lambda module, args, given, output: planted(given, output), with_kwargs=True)
    try:
        with pytest.raises(pytest.fail.Exception):
            _run(test, request, case, options)
    finally:
        handle.remove()
        memory.forget(model)


def _reads_no_text(case: Case) -> bool:
    return not case.record.reads(config_of(case)).causal


def _gradients(change: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
    def plant(model: Any) -> Any:
        for name, parameter in model.named_parameters():
            if name not in hf.frozen(model):
                parameter.requires_grad_(True).register_hook(change)
        return model

    return plant


def _scaled_forward(model: Any) -> Any:
    model.register_forward_hook(lambda module, args, given, output: _scaled(output), with_kwargs=True)
    return model


def _one_weight_wrong_on_disk(model: Any) -> Any:
    save = model.save_pretrained

    def wrong(*args: Any, **options: Any) -> None:
        with torch.no_grad():
            next(p for p in model.parameters() if p.ndim == 2).mul_(1 + 2**-10)
        save(*args, **options)

    model.save_pretrained = wrong
    return model


REBUILT: dict[str, tuple[Callable[..., None], Callable[[Any], Any]]] = {
    "gradients": (test_training.test_gradients, _gradients(lambda grad: grad * (1 + 1e-6))),
    "step": (test_training.test_a_step_of_an_optimizer, _gradients(torch.neg)),
    "dropout": (test_training.test_dropout, _scaled_forward),
    "router-gradients": (test_losses.test_load_balancing, _gradients(lambda grad: grad * (1 + 1e-6))),
    "saved": (test_invariants.test_saved_and_loaded, _one_weight_wrong_on_disk),
}
"""Of tests that build a model of their own: what is wrong with each that is built."""


@pytest.mark.parametrize("site", REBUILT)
@pytest.mark.parametrize("behind", affected(), ids=str)
def test_a_fault_in_training_or_saving_fails_behind_what_is_known(
    behind: Case, site: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    case, (test, plant) = behind, REBUILT[site]
    if _listed(case, site) is not None:
        pytest.skip("a difference of its own, which no deviation explains")
    if site == "router-gradients" and not hasattr(config_of(case), "aux_loss_coef"):
        pytest.skip("such a model has no load-balancing loss")
    options = {"saved": {"tmp_path": tmp_path}, "router-gradients": {"batch_name": "plain"}}.get(site, {})
    build = hf.build
    monkeypatch.setattr(hf, "build", lambda *args, **named: plant(build(*args, **named)))
    monkeypatch.setattr(test_training, "trained", inspect.unwrap(trained))
    with pytest.raises((pytest.fail.Exception, AssertionError)):
        _run(test, request, case, options)
