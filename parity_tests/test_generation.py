"""Greedy generation: the same tokens, token by token, on both sides."""

from __future__ import annotations

import pytest
import torch

from parity_tests.harness import hf
from parity_tests.harness.batches import Batch, Pads, rows_of, shrunk
from parity_tests.harness.case import Case, reads, twin
from parity_tests.harness.compare import Outcome, not_covered, under_lens, worse
from parity_tests.harness.greedy import my_continuation, their_continuation
from parity_tests.harness.known import Against, expected
from parity_tests.harness.recorder import Recorder

pytestmark = [
    pytest.mark.level("generation"),
    pytest.mark.precisions("f64", "f32"),
    pytest.mark.one_backend,
    pytest.mark.rounding_once,
    pytest.mark.causal,
    pytest.mark.shallow,
]


N_NEW = 8
"""So many tokens; trained models continue their prompts for longer in test_trained.py."""


def prompt(case: Case, name: str, shape: tuple[int, int], pads: Pads | None = None) -> tuple[Batch, int]:
    """What is continued, and by how many tokens: fewer of both where there are not so many positions."""
    rows, length = shape
    fits, n_new = reads(case).room(length, N_NEW)
    pads = pads and shrunk(pads, fits, length)
    return reads(case).prompt(name, (rows, fits), pads).to(case.device), n_new


def alone(batch: Batch, row: int) -> Batch:
    """One row of a batch, without its padding."""
    real = batch.inputs["real" if batch.source is None else "source_real"][row].nonzero().flatten()
    found = rows_of(batch, slice(row, row + 1), slice(int(real[0]), int(real[-1]) + 1))
    return Batch(name=batch.name, inputs={name: x for name, x in found.inputs.items() if name not in ("real", "source_real")})


def test_greedy(case: Case, recorder: Recorder) -> None:
    recorder.run(case, "accumulated", "greedy")
    text, n_new = prompt(case, "greedy", (2, 20))
    with recorder.crashing(case, "greedy"):
        theirs = their_continuation(case, text, n_new)
    recorder.judge(case, "greedy", lambda ours: under_lens(theirs, my_continuation(ours(), text, n_new)))


def test_from_a_prefilled_cache(case: Case, recorder: Recorder) -> None:
    """The beginning of the prompt was read before: what follows is what follows from all of it."""
    recorder.run(case, "accumulated", "prefilled")
    if reads(case).source or not hf.keeps_a_cache(twin(case)):
        pytest.skip("only a cache of keys and values of a text is handed to generate")
    text, n_new = prompt(case, "greedy", (2, 20))
    if text.length < 2:
        recorder.check(case, "prefilled", not_covered("there is no room for a prompt of two tokens"))
    read = min(13, text.length - 1)
    with recorder.crashing(case, "prefilled"):
        theirs = their_continuation(case, text, n_new, read=read)
    recorder.judge(case, "prefilled", lambda ours: under_lens(theirs, my_continuation(ours(), text, n_new, read=read)))


def test_a_left_padded_row_equals_the_row_alone(case: Case, recorder: Recorder) -> None:
    """A source whose positions are slots is padded on the right instead."""
    if not reads(case).padding and not reads(case).source:
        pytest.skip("such a model reads nothing padded")
    recorder.run(case, "accumulated", "left-padded")
    whole, n_new = prompt(case, "left-padded", (2, 8), [(0, 0), (5, 0)])
    if whole.inputs["real" if whole.source is None else "source_real"].all():
        recorder.check(case, "left-padded", not_covered("there is no room for padding"))
    with recorder.crashing(case, "left-padded"):
        theirs, their_alone = (their_continuation(case, text, n_new) for text in (whole, alone(whole, 1)))

    def kept(ours: Against) -> Outcome:
        """Row and row alone; where what is known of this release tells them apart, it has to be in that way."""
        mine, mine_alone = (my_continuation(ours(), text, n_new) for text in (whole, alone(whole, 1)))
        if torch.equal(mine[1:], mine_alone):
            return under_lens(theirs[1:], their_alone)
        return worse(under_lens(theirs, mine), under_lens(their_alone, mine_alone))

    recorder.judge(case, "left-padded", lambda ours: under_lens(theirs, my_continuation(ours(), whole, n_new)))
    recorder.judge(
        case, "left-padded.alone", lambda ours: under_lens(their_alone, my_continuation(ours(), alone(whole, 1), n_new))
    )
    recorder.judge(case, "left-padded.equals-alone", kept)


def test_stops_at_eos(case: Case, recorder: Recorder) -> None:
    """An end of sequence inside the batch: that row is filled up, the others go on, and all stop when all have ended."""
    recorder.run(case, "accumulated", "eos")
    two, n_new = prompt(case, "eos", (2, 9))
    last = max(n_new - 3, 0)
    free = my_continuation(expected(case, site="eos"), two, n_new)
    eos = int(free[0, last])  # so that the first row ends two tokens early at the latest
    with recorder.crashing(case, "eos"):
        theirs = their_continuation(case, two, n_new, eos=eos)

    def stopped(ours: Against) -> Outcome:
        mine = my_continuation(ours(), two, n_new, eos=eos)
        assert ours() is not expected(case, site="eos") or (mine[0, last + 1 :] == eos).all()
        return under_lens(theirs, mine)

    recorder.judge(case, "eos", stopped)
