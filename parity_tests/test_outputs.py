"""What a forward gives besides logits: hidden states, attentions, routers, caches; asked for by the call or by the config, by
name and as a tuple.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from parity_tests.harness import hf, ours
from parity_tests.harness.caches import compare_schedule
from parity_tests.harness.case import Case, batches_of, cache_batches, twin
from parity_tests.harness.compare import Outcome, absent, measured, refused, select, under_lens, worse
from parity_tests.harness.known import Against
from parity_tests.harness.record import Beside
from parity_tests.harness.recorder import Recorder
from parity_tests.harness.run import Run
from parity_tests.harness.shapes import unchecked

pytestmark = [
    pytest.mark.level("outputs"),
    pytest.mark.precisions("f64"),
    pytest.mark.tiny,
    pytest.mark.shallow,
]

SEED = 9
"""With which no decoder leaves out all of its layers."""

ELSEWHERE = {"logits", "prediction_logits", "last_hidden_state", "aux_loss", "loss", *hf.CACHES}
"""What a forward gives that other tests compare."""

NOT_SHOWN = "transformers keeps no probabilities of {} attention"


def switches(case: Case) -> dict[str, bool]:
    """All that can be asked of this model."""
    return {beside.switch: True for beside in case.record.beside if beside.switch and hf.can_ask(twin(case), beside.switch)}


def run(case: Case, inputs: Mapping[str, Tensor], **options: Any) -> Any:
    model = twin(case)
    hf.forget(model)
    return hf.run(model, "f64", inputs, **options)


def listed(value: Any) -> list[Any]:
    """The tensors of an output's field; none where it is not there, empty, or holds nothing but None."""
    values = list(value) if isinstance(value, tuple | list) else [value]
    return [x for x in values if x is not None]


def names_of(beside: Beside, count: int) -> list[str]:
    """The sites of its values."""
    return [beside.name] * count if beside.alone else [f"{beside.name}.{i}" for i in range(count)]


def values(run_: Run, beside: Beside, outputs: Sequence[Any]) -> Iterator[tuple[str, Outcome]]:
    """Each value over all batches, or that they are not as many as the reference has."""
    sites = beside.sites(run_.units)
    counts = {len(listed(getattr(output, beside.name, None))) for output in outputs}
    if counts == {0} and beside.switch == "output_attentions" and run_.case.backend.attention != "eager":
        yield beside.name, absent(NOT_SHOWN.format(run_.case.backend.attention))
        return
    if counts != {len(sites)}:
        yield beside.name, refused(f"transformers gives {max(counts)} {beside.name}, the reference has {len(sites)}")
        return
    for i, (name, site) in enumerate(zip(names_of(beside, len(sites)), sites, strict=True)):
        found = []
        for traced, output in zip(run_.traces, outputs, strict=True):
            pair = listed(getattr(output, beside.name))[i], traced.mine[site]
            found.append(under_lens(*(select(x, beside.axes, traced.batch.keep) for x in pair)))
        yield name, reduce(worse, found)


def judge(recorder: Recorder, case: Case, found: Sequence[tuple[str, Outcome]]) -> None:
    """Record and judge each; what is absent ends nothing."""
    for site, outcome in found:
        if outcome.verdict == "absent":
            recorder.keep(case, "accumulated", site, outcome)
        else:
            recorder.check(case, site, outcome)


def same(one: Any, other: Any) -> bool:
    """Whether two outputs, or parts of them, hold the same bits; of caches, whether both are some."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return type(one) is type(other)


def holds(true: bool, otherwise: str) -> Outcome:
    return measured(0.0, 0.0) if true else refused(otherwise)


def test_values(case: Case, recorder: Recorder) -> None:
    """As many as there are layers and one more, or one each, and each what the reference has there."""
    run_ = recorder.run(case, "accumulated", "besides")
    asked = switches(case)
    outputs = [run(case, traced.batch.inputs, **asked) for traced in run_.traces]
    named = {*ELSEWHERE, *(beside.name for beside in case.record.beside)}
    more = sorted({name for output in outputs for name in output} - named)
    recorder.check(case, "besides", holds(not more, f"transformers gives {more}, of which the record says nothing"))
    shown = [beside for beside in case.record.beside if beside.switch is None or beside.switch in asked]
    judge(recorder, case, [found for beside in shown for found in values(run_, beside, outputs)])


@pytest.mark.one_backend
def test_asking(case: Case, recorder: Recorder) -> None:
    """One switch gives what belongs to it and nothing else, and changes no bit of the rest; off, it gives nothing."""
    recorder.run(case, "accumulated", "asked")
    inputs, by_switch = batches_of(case)[0].inputs, dict[str, set[str]]()
    for beside in case.record.beside:
        if beside.switch is not None:
            by_switch.setdefault(beside.switch, set()).add(beside.name)
    plain = run(case, inputs)
    unasked = [name for names in by_switch.values() for name in names if plain.get(name) is not None]
    recorder.check(case, "unasked", holds(not unasked, f"transformers gives {unasked} unasked"))
    for switch in switches(case):
        output = run(case, inputs, **{switch: True})
        more = {name for name in output if name not in plain}
        odd = more - by_switch[switch] - {"aux_loss"}  # a total of the routers' logits, compared with the losses
        changed = [name for name in plain if name != "loss" and not same(plain[name], output[name])]
        note = f"{switch} gives {sorted(odd)} too" if odd else f"{switch} changes {changed}"
        recorder.check(case, f"asked.{switch}", holds(not odd and not changed, note))


@pytest.mark.one_backend
def test_as_a_tuple(case: Case, recorder: Recorder, tmp_path: Path) -> None:
    """In the order of the names, without what is None; asked for by the call, and by the config."""
    recorder.run(case, "accumulated", "tuple")
    inputs, asked = batches_of(case)[0].inputs, switches(case)
    by_name = run(case, inputs, **asked)
    expected = tuple(by_name[name] for name in by_name)
    fields = [name for name in type(by_name).__dataclass_fields__ if name in by_name]
    recorder.check(case, "names", holds(list(by_name) == fields, f"the order of the names is {list(by_name)}"))
    given = run(case, inputs, **asked, return_dict=False)
    right = isinstance(given, tuple) and same(expected, given)
    recorder.check(case, "tuple", holds(right, f"the tuple is another than {list(by_name)}"))
    with recorder.crashing(case, "tuple.by-config"):
        given = hf.run(configured(case, tmp_path, return_dict=False), "f64", inputs, **asked)
    right = isinstance(given, tuple) and same(expected, given)
    recorder.check(case, "tuple.by-config", holds(right, f"the tuple is another than {list(by_name)}"))


def configured(case: Case, folder: Path, **fields: bool) -> Any:
    """A case's model, with these fields in its config.json."""
    (folder / "model.safetensors").symlink_to(case.source / "model.safetensors")
    config = json.loads((case.source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    return hf.build(case.hf_class, folder, case.precision, case.backend, case.device)


@pytest.mark.one_backend
def test_asked_by_the_config(case: Case, recorder: Recorder, tmp_path: Path) -> None:
    """The same as asked by the call."""
    recorder.run(case, "accumulated", "by-config")
    if case.backend.attention != "eager" or not switches(case):
        pytest.skip("there is nothing to ask of it")
    inputs, asked = batches_of(case)[0].inputs, switches(case)
    by_call = run(case, inputs, **asked)
    with recorder.crashing(case, "by-config"):
        by_field = hf.run(configured(case, tmp_path, **asked), "f64", inputs)
    right = list(by_call) == list(by_field) and all(same(by_call[name], by_field[name]) for name in by_call)
    note = f"by the call it is {list(by_call)}, by the config {list(by_field)}"
    recorder.check(case, "by-config", holds(right, note))


@pytest.mark.causal
@pytest.mark.one_backend
def test_the_cache_that_a_forward_gives(case: Case, recorder: Recorder) -> None:
    """Keys and values, or states, of every layer; none where none is wanted."""
    run_ = recorder.run(case, "accumulated", "cache.held")
    recorder.judge(
        case, "cache.held", lambda mine: compare_schedule(run_.holding(mine), "pass", static=False, held=True)
    )
    without = run(case, batches_of(case)[0].inputs, use_cache=False)
    recorder.check(case, "cache.none", holds(hf.cache_of(without) is None, "a cache is given, and none was wanted"))


@pytest.mark.causal
@pytest.mark.one_backend
def test_the_cache_in_training(case: Case, recorder: Recorder) -> None:
    """The same with every dropout on, each side begun from one state of the RNG."""
    recorder.run(case, "accumulated", "cache.training")
    theirs, batch = hf.build(case.hf_class, case.source, "f64", case.backend, case.device).train(), cache_batches(case)[0]
    torch.manual_seed(SEED)
    held = hf.cache_of(hf.run(theirs, "f64", batch.inputs, use_cache=True))

    def compared(mine: Against) -> Outcome:
        model = copy.deepcopy(mine()).train()
        cache = ours.new_cache(model)
        torch.manual_seed(SEED)
        with torch.no_grad(), unchecked():
            ours.read(model, batch.inputs, cache)
        pairs = [(hf.cached(held, i) or (), kept(entry)) for i, entry in enumerate(cache.layers)]
        return reduce(worse, [layer for there, here in pairs for layer in each(there, here)])

    recorder.judge(case, "cache.training", compared)


def each(there: Sequence[Tensor], here: Sequence[Tensor]) -> Iterator[Outcome]:
    """What either side holds of a layer, tensor by tensor."""
    if len(there) != len(here):
        yield refused(f"transformers holds {len(there)} tensors of a layer, the reference {len(here)}")
        return
    if not there:  # of a layer that both left out
        yield measured(0.0, 0.0)
    yield from (under_lens(a, b) for a, b in zip(there, here, strict=True))


def kept(entry: Any) -> tuple[Tensor, ...]:
    """What the reference's cache holds of a layer; nothing of one that was left out."""
    try:
        return entry.held()
    except ValueError:
        return ()
