"""Comparing what a model gives over a cache: with the other side's, and with one pass of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from parity_tests.harness import hf
from parity_tests.harness.batches import Batch
from parity_tests.harness.case import Case, twin
from parity_tests.harness.compare import Outcome, not_covered, refused, select, under_lens, within_budget, worse
from parity_tests.harness.memory import of_model
from parity_tests.harness.record import Deviation
from parity_tests.harness.run import Run
from parity_tests.harness.schedules import SCHEDULES, cache_batches, read_ours, read_theirs


def _judge(run: Run, batch: Batch, axes: str, theirs: Tensor, mine: Tensor, oracle: Tensor) -> Outcome:
    theirs, mine, oracle = (select(x, axes, batch.keep, batch.keep) for x in (theirs, mine, oracle))
    return under_lens(theirs, mine) if run.lens else within_budget(theirs, mine, oracle)


def _ours(model: Any, batch: Batch, schedule: str) -> tuple[Tensor, Any]:
    key = ("read", schedule, batch.name)
    return of_model(model, key, lambda: read_ours(model, batch, SCHEDULES[schedule]))


def _theirs(case: Case, batch: Batch, schedule: str) -> tuple[Tensor, Any]:
    model = twin(case)
    key = ("read", schedule, batch.name)
    return of_model(model, key, lambda: read_theirs(model, case.precision, batch, SCHEDULES[schedule]))


def _outcomes(run: Run, schedule: str, static: bool) -> Iterator[Outcome]:
    case, sizes = run.case, SCHEDULES[schedule]
    for batch in cache_batches(run.model.config.vocab_size, case.device):
        theirs, cache = read_theirs(twin(case), case.precision, batch, sizes, static=static)
        mine, my_cache = _ours(run.model, batch, schedule)
        oracle, true_cache = _ours(run.oracle, batch, schedule)
        yield _judge(run, batch, "b s v", theirs, mine, oracle)
        for layer, (entry, true) in enumerate(zip(my_cache.layers, true_cache.layers, strict=True)):
            held = hf.cached(cache, layer)
            if held is not None and not static:
                for value, ours, truth in zip(held, entry.held(), true.held(), strict=True):
                    yield _judge(run, batch, "b g t e", value, ours, truth)
        pass_mine, _ = _ours(run.model, batch, "pass")
        pass_oracle, _ = _ours(run.oracle, batch, "pass")
        if run.lens:
            pass_theirs, _ = _theirs(case, batch, "pass")
            yield _judge(run, batch, "b s v", theirs, pass_theirs, pass_theirs)
            yield _judge(run, batch, "b s v", mine, pass_mine, pass_mine)
        else:
            yield _judge(run, batch, "b s v", theirs, pass_mine, pass_oracle)


def compare_schedule(run: Run, schedule: str, *, static: bool) -> Outcome:
    """Logits of every token, keys and values held at the end, and one pass; the worst of them."""
    if run.case.precision in ("bf16", "f16") and any(unit.routes for unit in run.units):
        return not_covered("half precision flips choices among experts; one pass is compared under forced routing")
    try:
        outcomes = list(_outcomes(run, schedule, static))
    except hf.Crashed as reason:
        return refused(str(reason))
    result = outcomes[0]
    for outcome in outcomes[1:]:
        result = worse(result, outcome)
    return result


def their_logits(run: Run, schedule: str, *, static: bool) -> list[Tensor]:
    """transformers' logits over a schedule, batch by batch."""
    case = run.case
    batches = cache_batches(run.model.config.vocab_size, case.device)
    return [read_theirs(twin(case), case.precision, b, SCHEDULES[schedule], static=static)[0] for b in batches]


def explain_schedule(run: Run, schedule: str, theirs: list[Tensor]) -> Deviation | None:
    """The deviation with which the reference would agree with these logits over this schedule."""
    if not run.lens:
        return None
    batches = cache_batches(run.model.config.vocab_size, run.case.device)
    likely_first = sorted(run.case.record.deviations, key=lambda deviation: deviation.site != "cache")
    for deviation in likely_first:
        model = deviation.of(run.model)
        mine = (read_ours(model, batch, SCHEDULES[schedule])[0] for batch in batches)
        pairs = zip(batches, theirs, mine, strict=True)
        if all(_judge(run, batch, "b s v", a, b, b).verdict == "same" for batch, a, b in pairs):
            return deviation
    return None
