"""The other classes of each family: trunks, encoders and decoders alone; heads for sequences, tokens, answers and choices."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from parity_tests.families import FAMILIES
from parity_tests.families.tasks import last
from parity_tests.harness import hf
from parity_tests.harness.batches import Batch
from parity_tests.harness.case import Case, batches_of
from parity_tests.harness.compare import Outcome, absent, measured, select, under_lens, worse
from parity_tests.harness.points import config_of
from parity_tests.harness.record import Fed, Sibling
from parity_tests.harness.recorder import Recorder
from parity_tests.harness.siblings import Pair, build, classes_of_variants, exported, run
from parity_tests.harness.training import GRADIENT_BAR

pytestmark = pytest.mark.level("classes")
@pytest.mark.parametrize("name", FAMILIES)
def test_every_class_is_accounted_for(name: str) -> None:
    """What a release exports is compared, or the record says why not."""
    family = FAMILIES[name]
    try:
        found = exported(family)
    except hf.Absent as reason:
        pytest.skip(f"absent: {reason}")
    missing = [each for each in found if each not in family.siblings and each not in classes_of_variants(family)]
    assert not missing, (
        f"nothing compares {', '.join(missing)} of {name}: add it to `siblings` in parity_tests/families/{name}.py, "
        "or there the reason why not"
    )


def pair_of(recorder: Recorder, case: Case, sibling: str, n_labels: int) -> Pair:
    """Both sides; where this release lacks the class, that is recorded and the test skipped."""
    try:
        last = [unit.name for unit in case.record.units_of(config_of(case)) if unit.level == "layer"][-1]
        return build(case, sibling, n_labels, last)
    except hf.Absent as reason:
        recorder.keep(case, "accumulated", sibling, absent(str(reason)))
        pytest.skip(f"absent: {reason}")


def batches(case: Case) -> list[Batch]:
    return [batch for batch in batches_of(case) if batch.name in ("plain", "padded")]


def n_labels_of(case: Case, sibling: str) -> tuple[int, ...]:
    each = case.record.siblings[sibling]
    assert isinstance(each, Sibling)
    return each.n_labels


def real(x: Tensor, batch: Batch) -> Tensor:
    """What is of real tokens, where it is of tokens at all."""
    axes = next((f"b {axis}" for axis, kept in batch.keep.items() if x.shape[:2] == kept.shape), "b")
    return select(x, axes, batch.keep)


def compared(pair: Pair, outputs: Mapping[str, Tensor], given: Any, batch: Batch, fed: Fed) -> dict[str, Outcome]:
    """By name; what is of each choice is a row of the reference's."""
    found = {}
    for name, mine in outputs.items():
        theirs = given[name].flatten(0, 1) if fed.choices > 1 and name in pair.sibling.also else given[name]
        found[name] = under_lens(real(theirs, batch), real(mine, batch))
    return found


def judge(recorder: Recorder, case: Case, found: Mapping[str, list[Outcome]]) -> None:
    """Each site by the worst of all batches."""
    for site, outcomes in found.items():
        recorder.check(case, site, reduce(worse, outcomes))


def of_each_class(test: Any) -> Any:
    """Under the lens, of every class with the variant that lends its trunk."""
    for mark in (pytest.mark.precisions("f64"), pytest.mark.one_backend, pytest.mark.tiny):
        test = mark(test)
    return test


@of_each_class
def test_outputs(case: Case, sibling: str, recorder: Recorder) -> None:
    pair = pair_of(recorder, case, sibling, n_labels_of(case, sibling)[0])
    found: dict[str, list[Outcome]] = {}
    for batch in batches(case):
        fed = pair.sibling.feed(batch, pair.theirs.config)
        with torch.no_grad():
            mine = pair.outputs(batch, fed)
        with recorder.crashing(case, sibling):
            given = run(pair.theirs, fed)
        for name, outcome in compared(pair, mine, given, batch, fed).items():
            found.setdefault(f"{sibling}.{name}", []).append(outcome)
    if pair.sibling.pick is last:
        found[f"{sibling}.alone"] = [one_row(pair, batch) for batch in batches(case)[:1]]
    judge(recorder, case, found)


def one_row(pair: Pair, batch: Batch) -> Outcome:
    """Without a token for padding the last token is the last real one; several rows are refused, as nobody can know."""
    fed = pair.sibling.feed(batch, pair.theirs.config)
    with torch.no_grad():
        mine = pair.outputs(batch, fed)
    pair.theirs.config.pad_token_id = None
    with pytest.raises(hf.Crashed, match="batch sizes > 1 if no padding token is defined"):
        run(pair.theirs, fed)
    row = run(pair.theirs, Fed(mine=fed.mine, theirs={name: x[:1] for name, x in fed.theirs.items()}))
    return under_lens(row.logits, mine["logits"][:1])


@of_each_class
def test_losses(case: Case, sibling: str, recorder: Recorder) -> None:
    """Of every kind of labels, and the gradients of the head and of the embedding by each."""
    found: dict[str, list[Outcome]] = {}
    for n_labels in n_labels_of(case, sibling):
        pair = pair_of(recorder, case, sibling, n_labels)
        if pair.sibling.task.loss is None:
            pytest.skip("nothing is learned without a head")
        pair.theirs.requires_grad_(True)
        for batch in batches(case)[: 1 if pair.sibling.task.over_padding else None]:
            fed = pair.sibling.feed(batch, pair.theirs.config)
            with torch.no_grad():
                kinds = pair.sibling.task.labels(batch, pair.outputs(batch, fed))
            for kind, labels in kinds.items():
                loss, gradients = both_learn(pair, batch, fed, kind, labels)
                found.setdefault(f"{sibling}.loss.{kind}", []).append(loss)
                found.setdefault(f"{sibling}.gradients.{kind}", []).append(gradients)
    judge(recorder, case, found)


def both_learn(pair: Pair, batch: Batch, fed: Fed, kind: str, labels: Mapping[str, Tensor]) -> tuple[Outcome, Outcome]:
    """How the losses agree, and the gradients that matter most."""
    assert pair.sibling.task.loss is not None
    for side in (pair.model, pair.theirs, *([pair.head] if pair.head is not None else [])):
        side.zero_grad()
    loss = pair.sibling.task.loss(kind, pair.outputs(batch, fed), labels)
    loss.backward()
    pair.theirs.config.problem_type = None  # the first labels that it saw would decide of what kind all others are
    output = run(pair.theirs, fed, labels)
    given = next(output[name] for name in ("loss", "mc_loss") if name in output)
    given.backward()
    there = dict(pair.theirs.named_parameters())
    embedding = next(module for module in pair.model.modules() if isinstance(module, nn.Embedding))
    pairs = [(there[name], own) for name, own in pair.heads()]
    pairs.append((pair.theirs.get_input_embeddings().weight, embedding.weight))
    gradients = [(gradient(theirs), gradient(own)) for theirs, own in pairs]
    scale = max(own.abs().max() for _, own in gradients)  # that of a bias that every choice shares is nought but noise
    error = max(float((theirs - own).abs().max() / scale) for theirs, own in gradients)
    return under_lens(given.detach(), loss.detach()), measured(error, GRADIENT_BAR, "a gradient")


def gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


@of_each_class
def test_dropout(case: Case, sibling: str, recorder: Recorder) -> None:
    """What lies on the trunk drops in the same place, and after all of the trunk."""
    pair = pair_of(recorder, case, sibling, n_labels_of(case, sibling)[0])
    pair.train()
    batch = batches(case)[0]
    fed = pair.sibling.feed(batch, pair.theirs.config)
    torch.manual_seed(7)
    with recorder.crashing(case, sibling):
        given = run(pair.theirs, fed)
    torch.manual_seed(7)
    with torch.no_grad():
        mine = pair.outputs(batch, fed)
    found = compared(pair, mine, given, batch, fed)
    judge(recorder, case, {f"{sibling}.dropout.{name}": [outcome] for name, outcome in found.items()})
