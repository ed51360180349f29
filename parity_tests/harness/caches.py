"""Comparing what a model gives over a cache: with the other side's, and with one pass of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

from torch import Tensor

from parity_tests.harness import hf
from parity_tests.harness.batches import Batch
from parity_tests.harness.case import Case, cache_batches, reference, twin
from parity_tests.harness.compare import Outcome, absent, in_precision, not_covered, refused, select, under_lens, worse
from parity_tests.harness.explanation import explain_site
from parity_tests.harness.known import expected
from parity_tests.harness.memory import of_model
from parity_tests.harness.points import config_of
from parity_tests.harness.record import Deviation
from parity_tests.harness.run import Run
from parity_tests.harness.schedules import SCHEDULES, at_edges, grows, read_ours, read_theirs


def _real(batch: Batch, axes: str, *sides: Tensor) -> tuple[Tensor, ...]:
    """Of real tokens."""
    return tuple(select(x, axes, batch.keep) for x in sides)


def sizes_of(case: Case, schedule: str) -> tuple[int, ...]:
    """How many tokens go in at each call."""
    return SCHEDULES.get(schedule) or at_edges(config_of(case))[schedule]


def batches_for(case: Case, schedule: str) -> list[Batch]:
    """What is read by a schedule."""
    return cache_batches(case, None if schedule in SCHEDULES else sum(sizes_of(case, schedule)))


def _ours(model: Any, batch: Batch, sizes: tuple[int, ...]) -> tuple[Tensor, Any]:
    return of_model(model, ("read", sizes, batch.name), lambda: read_ours(model, batch, sizes))


def _theirs(case: Case, batch: Batch, sizes: tuple[int, ...], static: bool) -> tuple[Tensor, Any]:
    model = twin(case)
    key = ("read", sizes, batch.name, static)
    return of_model(model, key, lambda: read_theirs(model, case.precision, batch, sizes, static=static))


def _logits(run: Run, schedule: str, static: bool) -> list[Outcome]:
    """Of every token: against the other side over this schedule; and against one pass, unless that is another rotary table."""
    between, with_a_pass, alone = [], [], []
    sizes = sizes_of(run.case, schedule)
    one_table = schedule in SCHEDULES or not grows(config_of(run.case))
    for batch in batches_for(run.case, schedule):
        theirs, _ = _theirs(run.case, batch, sizes, static)
        mine, oracle = (_ours(model, batch, sizes)[0] for model in (run.model, run.oracle))
        between.append(_real(batch, "b s v", theirs, mine, oracle))
        if not one_table:
            continue
        whole = (batch.length,)
        pass_mine, pass_oracle = (_ours(model, batch, whole)[0] for model in (run.model, run.oracle))
        if run.lens:
            pass_theirs, _ = _theirs(run.case, batch, whole, static=False)
            with_a_pass.append(_real(batch, "b s v", theirs, pass_theirs, pass_theirs))
            alone.append(_real(batch, "b s v", mine, pass_mine, pass_mine))
        else:
            with_a_pass.append(_real(batch, "b s v", theirs, pass_mine, pass_oracle))
    held, kept, own = (in_precision(inputs, lens=run.lens) for inputs in (between, with_a_pass, alone))
    departs = run.model is not reference(run.case)
    if departs and (not run.lens or any(outcome.verdict == "differs" for outcome in own)):
        return held  # what transformers is known to do over a cache may not be what it does in one pass
    return [*held, *kept, *own]


def _held(run: Run, schedule: str) -> Iterator[Outcome]:
    """Keys and values, or what a family keeps instead, of every layer."""
    places: dict[tuple[int, int], list[Any]] = {}
    sizes = sizes_of(run.case, schedule)
    for batch in batches_for(run.case, schedule):
        _, cache = _theirs(run.case, batch, sizes, static=False)
        mine, oracle = (_ours(model, batch, sizes)[1] for model in (run.model, run.oracle))
        for layer, (entry, true) in enumerate(zip(mine.layers, oracle.layers, strict=True)):
            held = hf.cached(cache, layer)
            if held is None:
                yield absent("transformers returned no cache")
                continue
            try:
                kept, truly = entry.held(), true.held()
            except ValueError as reason:  # of a reference that departs by keeping nothing
                yield refused(str(reason))
                continue
            each = zip(held, kept, truly, run.case.record.holds, strict=False)
            for i, (value, ours, truth, axes) in enumerate(each):
                places.setdefault((layer, i), []).append(_real(batch, axes, value, ours, truth))
            if len(held) != len(kept):
                yield refused(f"transformers holds {len(held)} tensors of a layer, the reference {len(kept)}")
    for inputs in places.values():
        yield from in_precision(inputs, lens=run.lens)


def compare_schedule(run: Run, schedule: str, *, static: bool, held: bool = False) -> Outcome:
    """The worst of all logits over a schedule; or of what the cache holds at its end."""
    if all(batch.length < 2 for batch in batches_for(run.case, schedule)):
        return not_covered("there are positions for one token alone, which leaves nothing to a cache")
    if run.case.precision in ("bf16", "f16") and any(unit.routes for unit in run.units):
        return not_covered("half precision flips choices among experts; one pass is compared under forced routing")
    try:
        return reduce(worse, _held(run, schedule) if held else _logits(run, schedule, static))
    except hf.Crashed as reason:
        return refused(str(reason), reason.raised)


def agreement(batches: Sequence[Batch], theirs: Sequence[Tensor], model: Any, sizes: tuple[int, ...]) -> Outcome:
    """The worst of these logits, batch by batch, held against what a reference gives over a schedule; under the lens."""
    with_mine = ((batch, logits, _ours(model, batch, sizes)[0]) for batch, logits in zip(batches, theirs, strict=True))
    return reduce(worse, (under_lens(*_real(batch, "b s v", a, b)) for batch, a, b in with_mine))


def explain_schedule(case: Case, schedule: str, theirs: Sequence[Tensor]) -> Deviation | None:
    """The deviation with which the reference would agree with these logits over this schedule, as it does not without."""
    batches, sizes = batches_for(case, schedule), sizes_of(case, schedule)
    if agreement(batches, theirs, expected(case), sizes).verdict == "same":
        return None
    return explain_site(case, f"dynamic.{schedule}", lambda ours: agreement(batches, theirs, ours(), sizes))
