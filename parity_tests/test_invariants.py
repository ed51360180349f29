"""What must hold whatever the mathematics is, on both sides: it needs no twin, and has caught much of what history shows."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import weight_mapping
from parity_tests.harness import hf, known
from parity_tests.harness.batches import Batch
from parity_tests.harness.case import Case, batches_of, reads, reference
from parity_tests.harness.compare import DTYPES, Outcome, measured, refused, under_lens, worse
from parity_tests.harness.points import backends_of
from parity_tests.harness.recorder import Recorder
from parity_tests.harness.sides import Side, batch_of, mine, theirs
from parity_tests.harness.training import layout_of
from weight_mapping.loading import parameters_of

pytestmark = [pytest.mark.level("invariant"), pytest.mark.precisions("f64"), pytest.mark.tiny, pytest.mark.shallow]


def all_of(outcomes: Iterable[Outcome]) -> Outcome:
    return reduce(worse, outcomes)


def changed(batch: Batch, name: str, where: Tensor, vocab_size: int) -> Batch:
    """Other tokens where `where` is True."""
    ids = batch.inputs[name]
    return Batch(name=batch.name, inputs={**batch.inputs, name: torch.where(where, (ids + 1) % vocab_size, ids)})


def row_alone(batch: Batch, row: int) -> tuple[Batch, Tensor]:
    """One row without its padding, and where its tokens were."""
    kept = {axis: real[row] for axis, real in batch.keep.items()}
    inputs = {}
    for name, x in batch.inputs.items():
        if not name.endswith("real"):
            inputs[name] = x[row : row + 1, kept["m" if name in ("source", "memory") else "s"]]
    return Batch(name=batch.name, inputs=inputs), kept["s"]


def test_a_padded_row_is_the_row_alone(case: Case, recorder: Recorder) -> None:
    recorder.run(case, "accumulated", "padded-alone")
    batch = batch_of(case, "padded")
    rows = [  # padded on the left, where positions are slots, a row is another one
        row for row in range(batch.rows) if reads(case).shiftable or all(real[row, 0] for real in batch.keep.values())
    ]

    def law(side: Side) -> Outcome:
        whole = side(batch.inputs)
        alone = [(row, *row_alone(batch, row)) for row in rows]
        return all_of(under_lens(whole[row, real], side(one.inputs)[0]) for row, one, real in alone)

    recorder.hold(case, "padded-alone", law)


def test_what_padding_holds_changes_nothing(case: Case, recorder: Recorder) -> None:
    recorder.run(case, "accumulated", "padding-content")
    batch, given = batch_of(case, "padded"), reads(case)
    other = batch
    if given.padding:
        other = changed(other, "ids", ~batch.keep["s"], given.vocab_size)
    if given.source:
        other = changed(other, "source", ~batch.keep["m"], given.source)
    if given.memory:
        memory = batch.inputs["memory"].masked_fill(~batch.keep["m"][..., None], 3.0)
        other = Batch(name=batch.name, inputs={**other.inputs, "memory": memory})

    def law(side: Side) -> Outcome:
        return under_lens(batch.kept(side(other.inputs)), batch.kept(side(batch.inputs)))

    recorder.hold(case, "padding-content", law)


@pytest.mark.causal
def test_the_future_changes_nothing(case: Case, recorder: Recorder) -> None:
    recorder.run(case, "accumulated", "causality")
    batch = batch_of(case, "plain")
    later = (torch.arange(batch.length) >= batch.length // 2).expand(batch.rows, -1)
    other, now = changed(batch, "ids", later, reads(case).vocab_size), ~later[0]
    recorder.hold(case, "causality", lambda side: under_lens(side(other.inputs)[:, now], side(batch.inputs)[:, now]))


def test_the_same_call_twice_and_its_inputs_untouched(case: Case, recorder: Recorder) -> None:
    recorder.run(case, "accumulated", "twice")
    batches = batches_of(case)[:2]

    def law(side: Side) -> Outcome:
        found = []
        for batch in batches:
            given = {name: x.clone() for name, x in batch.inputs.items()}
            first = side(given)
            found.append(under_lens(side(given), first))
            wrong = [name for name, x in batch.inputs.items() if not torch.equal(given[name], x)]
            found += [refused(f"{', '.join(wrong)} was changed in place")] if wrong else []
        return all_of(found)

    recorder.hold(case, "twice", law)


def test_positions_shifted(case: Case, recorder: Recorder) -> None:
    """Rotary positions say how far apart two tokens are, and no more."""
    if not hasattr(reference(case).config, "rope"):
        pytest.skip("absolute positions")
    recorder.run(case, "accumulated", "shifted")
    batch = batch_of(case, "plain")
    steps = torch.arange(batch.length).expand(batch.rows, -1)
    near, far = ({**batch.inputs, "positions": steps + by} for by in (0, 5))
    recorder.hold(case, "shifted", lambda side: under_lens(side(far), side(near)))


def test_attention_implementations_agree(case: Case, recorder: Recorder) -> None:
    first = replace(case, backend=backends_of(case.family, case.variant, case.precision)[0])
    if case == first:
        pytest.skip("the one that the others are compared with")
    recorder.run(case, "accumulated", "implementations")
    departs = {known.departures(case), known.departures(first)}
    if len(departs) > 1:
        pytest.skip("one of the two is known to depart from the other, and each is held against what it is known for")
    pairs = ((batch, *(theirs(one, batch.inputs) for one in (case, first))) for batch in batches_of(case))
    recorder.check(case, "implementations", all_of(under_lens(batch.kept(a), batch.kept(b)) for batch, a, b in pairs))


@pytest.mark.one_backend
def test_saved_and_loaded(case: Case, recorder: Recorder, tmp_path: Path) -> None:
    """What either side writes, both read: weights and config, keys of transformers 4 from here and of its own from there."""
    recorder.run(case, "accumulated", "saved")
    batch, model = batches_of(case)[0], reference(case)
    here, there = tmp_path / "reference", tmp_path / "transformers"
    weight_mapping.save(weight_mapping.load(case.source), here)
    hf.build(case.hf_class, case.source, "f32", case.backend).save_pretrained(there)
    found, departed = [], mine(case, batch.inputs, model=known.expected(case))
    for folder in (here, there):
        try:
            again = weight_mapping.load(folder, dtype=torch.float64)
        except weight_mapping.MappingError as error:
            found.append(refused(f"what {folder.name} wrote is refused: {error}"))
            continue
        as_known = folder is there and torch.equal(mine(case, batch.inputs, model=again), departed)
        if again.config != model.config and not as_known:  # what transformers is known to make of a config, it may write down
            found.append(refused(f"{folder.name} writes a config that says something else"))
            continue
        for name, parameter in parameters_of(model).items():
            assert torch.equal(parameters_of(again)[name], parameter), f"{name} was changed by {folder.name}"
        loaded = hf.build(case.hf_class, folder, "f64", case.backend)
        hf.forget(loaded)
        read = mine(case, batch.inputs, model=known.expected_from(case, folder))
        found.append(under_lens(hf.run(loaded, "f64", batch.inputs).logits, read))
    recorder.check(case, "saved", all_of(found))


@pytest.mark.precisions("bf16", "f16")
@pytest.mark.one_backend
@pytest.mark.rounding_once
def test_cast_alike(case: Case, recorder: Recorder, tmp_path: Path) -> None:
    """Loaded in half precision, weights that it cannot hold are rounded in the same places on both sides, and nowhere else."""
    recorder.run(case, "accumulated", "cast")
    shutil.copytree(case.source, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    save_file({name: t * (1 + 2**-13) for name, t in weights.items()}, tmp_path / "model.safetensors", {"format": "pt"})
    there = hf.build(case.hf_class, tmp_path, case.precision, case.backend)
    here = weight_mapping.load(tmp_path, dtype=DTYPES[case.precision])
    their = layout_of(here, there, buffers=True).forward(there.state_dict())
    wrong = [
        f"{name} is {their[name].dtype} there, {own.dtype} here".replace("torch.", "")
        for name, own in parameters_of(here).items()
        if their[name].dtype != own.dtype or not torch.equal(their[name], own)
    ]
    recorder.check(case, "cast", refused("; ".join(wrong)) if wrong else measured(0.0, 0.0))
