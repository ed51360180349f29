"""What transformers' models begin as is what their configs and papers state: the law of every parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from parity_tests.families import FAMILIES
from parity_tests.harness import hf
from parity_tests.harness.case import Case
from parity_tests.harness.initial import SAID, Fresh, config_class, drawn, fresh, judge
from parity_tests.harness.names import kind_of
from parity_tests.harness.points import config_of, raw_config_of
from parity_tests.harness.recorder import Recorder
from reference_impl.initialisation import Given, Law, Normal, laws


def said_to(case: Case, name: str) -> dict[str, Any]:
    """Those of these keys that the config class has, and that the file does not give."""
    have, given = config_class(case)().to_dict(), raw_config_of(case)
    said = {key: value for key, value in SAID[name].items() if key in have and key not in given}
    if SAID[name] and not said:
        pytest.skip(f"{case.family} has none of these")
    return said


def made(case: Case, name: str) -> tuple[Fresh, dict[str, Law]]:
    said = said_to(case, name)
    found = fresh(case, said)
    return found, laws(case.record.initial, config_of(case), {**raw_config_of(case), **said}, found.seeds[0])


@pytest.mark.level("initial")
@pytest.mark.precisions("f64")
@pytest.mark.one_backend
@pytest.mark.tiny
@pytest.mark.broad
@pytest.mark.shallow
@pytest.mark.parametrize("name", SAID)
def test_initialisation(case: Case, name: str, recorder: Recorder) -> None:
    recorder.run(case, "accumulated", "initial")  # what cannot be loaded is told of as such
    with recorder.crashing(case, "initial"):
        found, stated = made(case, name)
    outcomes = {"drawn": drawn(found, stated), **judge(found, stated)}
    for kind, outcome in sorted(outcomes.items(), key=lambda each: each[1].verdict == "differs"):
        recorder.check(case, f"initial.{kind}", outcome)


# --- faults are found ---


def _doubled(x: Tensor, law: Law) -> Tensor:
    return x if isinstance(law, Given) else x * 2


def _off_zero(x: Tensor, law: Law) -> Tensor:
    return x if not isinstance(law, Given) else x + 1e-3


def _no_zero_row(x: Tensor, law: Law) -> Tensor:
    if isinstance(law, Normal) and law.zero_row is not None:
        x = x.clone()
        x[law.zero_row] = law.std
    return x


def _shifted(x: Tensor, law: Law) -> Tensor:
    return x + law.std if isinstance(law, Normal) else x


FAULTS: list[Callable[[Tensor, Law], Tensor]] = [_doubled, _off_zero, _no_zero_row, _shifted]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_fault_is_found(family: str, fault: Callable[[Tensor, Law], Tensor]) -> None:
    """In every kind of parameter that it touches, and in no other."""
    record = FAMILIES[family]
    case = Case(family, next(iter(record.variants)), "f64", record.backends[0])
    if not hf.has_class(case.hf_class):
        pytest.skip(f"absent: transformers {hf.VERSION} has no {case.hf_class}")
    found, stated = made(case, "published")
    before = {kind for kind, outcome in judge(found, stated).items() if outcome.verdict == "differs"}
    wrong = [{name: fault(x, stated[name]) for name, x in each.items()} for each in found.seeds]
    touched = {name for name, x in wrong[0].items() if not torch.equal(x, found.seeds[0][name])}
    after = {kind for kind, outcome in judge(Fresh(wrong), stated).items() if outcome.verdict == "differs"}
    assert after - before == {kind_of(name) for name in touched} - before
