"""Recurrent token mixers are attention without a softmax over positions: one token after the other, or all at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from parity_tests.families import FAMILIES
from parity_tests.harness import hf
from parity_tests.harness.batches import Batch, from_ids, tokens
from parity_tests.harness.case import Case, reference, twin
from parity_tests.harness.compare import BAR, largest_relative
from parity_tests.harness.record import Backend
from parity_tests.harness.schedules import SCHEDULES, read_ours, read_theirs
from parity_tests.harness.shapes import unchecked
from reference_impl.mamba import scan, scan_parallel
from reference_impl.rwkv import no_sums, wkv, wkv_parallel
from weight_mapping import load

VARIANTS = [(family, variant) for family in ("mamba", "rwkv") for variant in FAMILIES[family].variants]
LENGTHS = (1, 2, 5, 33)


def case(family: str, variant: str) -> Case:
    return Case(family, variant, "f64", Backend("eager"))


def batch(model: Any, rows: int = 2) -> Batch:
    return from_ids("recurrent", tokens("recurrent", (rows, 19), model.config.vocab_size))


@pytest.mark.parametrize(("family", "variant"), VARIANTS, ids=map("-".join, VARIANTS))
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_recurrent_equals_parallel(family: str, variant: str, schedule: str) -> None:
    """The whole model, in one pass, in steps and in chunks over a state: logits and what the state holds."""
    model = reference(case(family, variant))
    other = load(case(family, variant).source, dtype=torch.float64).parallel()
    (mine, state), (theirs, held) = (read_ours(side, batch(model), SCHEDULES[schedule]) for side in (model, other))
    assert largest_relative(theirs, mine) < BAR
    for one, two in zip(state.layers, held.layers, strict=True):
        assert all(largest_relative(y, x) < BAR for x, y in zip(one.held(), two.held(), strict=True))


@pytest.mark.parametrize(("family", "variant"), VARIANTS, ids=map("-".join, VARIANTS))
@pytest.mark.parametrize("schedule", ["steps", "chunks"])
def test_a_state_carried_over_calls_is_one_pass(family: str, variant: str, schedule: str) -> None:
    model = reference(case(family, variant))
    (whole, last), (pieces, carried) = (read_ours(model, batch(model), SCHEDULES[name]) for name in ("pass", schedule))
    assert largest_relative(pieces, whole) < BAR
    for one, two in zip(last.layers, carried.layers, strict=True):
        assert all(largest_relative(y, x) < BAR for x, y in zip(one.held(), two.held(), strict=True))


def test_a_state_is_of_one_size_whatever_was_read() -> None:
    for family in ("mamba", "rwkv"):
        model = reference(case(family, "base"))
        sizes = []
        for length in LENGTHS:
            ids = tokens("size", (2, length), model.config.vocab_size)
            cache = read_ours(model, from_ids("size", ids), (length,))[1]
            sizes.append([x.shape for layer in cache.layers for x in layer.held()])
            assert cache.length == length
        assert all(size == sizes[0] for size in sizes)


def vectors(name: str, *shape: int) -> torch.Tensor:
    numbers = tokens(name, (1, torch.Size(shape).numel()), 2001)
    return (numbers.view(shape).double() - 1000) / 500


@pytest.mark.parametrize("length", LENGTHS)
def test_scan_by_scalar_loops(length: int) -> None:
    """h[t] = exp(dt a) h[t-1] + dt b x, y[t] = h[t] · c, number by number."""
    rows, d_inner, d_state = 2, 3, 4
    x, b, c = vectors("x", rows, length, d_inner), vectors("b", rows, length, d_state), vectors("c", rows, length, d_state)
    dt, a = vectors("dt", rows, length, d_inner).abs(), -vectors("a", d_inner, d_state).abs()
    state = vectors("state", rows, d_inner, d_state)
    expected, last = torch.zeros_like(x), state.clone()
    for row in range(rows):
        for t in range(length):
            for f in range(d_inner):
                for n in range(d_state):
                    decay = torch.exp(dt[row, t, f] * a[f, n])
                    last[row, f, n] = decay * last[row, f, n] + dt[row, t, f] * b[row, t, n] * x[row, t, f]
                expected[row, t, f] = (last[row, f] * c[row, t]).sum()
    for form in (scan, scan_parallel):
        with unchecked():
            y, h = form(x, dt, a, b, c, state)
        assert largest_relative(y, expected) < BAR
        assert largest_relative(h, last) < BAR


@pytest.mark.parametrize("length", LENGTHS)
def test_wkv_by_scalar_loops(length: int) -> None:
    """A mean of values weighted with exp(key + age * decay), from its definition, without any trick against overflow."""
    rows, d_inner = 2, 3
    k, v = vectors("k", rows, length, d_inner), vectors("v", rows, length, d_inner)
    decay, first = -vectors("decay", d_inner).abs(), vectors("first", d_inner)
    expected = torch.zeros_like(v)
    for row in range(rows):
        for t in range(length):
            for f in range(d_inner):
                weights = [torch.exp(k[row, i, f] + (t - 1 - i) * decay[f]) for i in range(t)]
                weights.append(torch.exp(k[row, t, f] + first[f]))
                total = sum(weight * v[row, i, f] for i, weight in enumerate(weights))
                expected[row, t, f] = total / sum(weights)
    for form in (wkv, wkv_parallel):
        with unchecked():
            y, _ = form(k, v, decay, first, no_sums(k))
        assert largest_relative(y, expected) < BAR


@pytest.mark.parametrize("form", [wkv, wkv_parallel])
def test_keys_that_would_overflow(form: Any) -> None:
    k, v = 1000 * vectors("k", 1, 9, 3), vectors("v", 1, 9, 3)
    with unchecked():
        y, sums = form(k, v, -vectors("decay", 3).abs(), vectors("first", 3), no_sums(k))
    assert torch.isfinite(y).all()
    assert all(torch.isfinite(x).all() for x in sums)
    assert y.abs().max() <= v.abs().max()


# What transformers does otherwise, in its smallest form


def test_rwkv_in_transformers_mixes_the_rows_of_a_batch() -> None:
    """A step of one token: right for one row; for more, the logits have another shape."""
    theirs, model = twin(case("rwkv", "base")), reference(case("rwkv", "base"))
    one = batch(model, rows=1)
    alone = read_theirs(theirs, "f64", one, SCHEDULES["steps"])[0]
    assert largest_relative(alone, read_ours(model, one, SCHEDULES["steps"])[0]) < BAR
    with pytest.raises(hf.Crashed, match=r"logits of shape \(2, 2, 131\) for tokens of shape \(2, 1\)"):
        read_theirs(theirs, "f64", batch(model), SCHEDULES["steps"])


def test_rwkv_in_transformers_has_no_state_of_another_width() -> None:
    """attention_hidden_size apart from hidden_size: right without a state, and an error with one."""
    theirs, model = twin(case("rwkv", "wide")), reference(case("rwkv", "wide"))
    given = batch(model).inputs
    with torch.no_grad(), unchecked():
        mine = model(**given)
    assert largest_relative(hf.run(theirs, "f64", given, use_cache=False).logits, mine) < BAR
    with pytest.raises(hf.Crashed, match="must match the size"):
        hf.run(theirs, "f64", given)


def test_rwkv_in_transformers_is_saved_as_it_was_divided(tmp_path: Any) -> None:
    """Once it was run, it saves the weights that it divided, and a reader divides them once more."""
    one = case("rwkv", "halved")
    theirs: Any = hf.build(one.hf_class, one.source, "f32", one.backend)
    given = batch(reference(one)).inputs
    theirs.save_pretrained(tmp_path / "before")
    first = hf.run(theirs, "f32", given).logits
    theirs.save_pretrained(tmp_path / "after")
    again = [hf.build(one.hf_class, tmp_path / name, "f32", one.backend) for name in ("before", "after")]
    right, wrong = (hf.run(model, "f32", given).logits for model in again)
    assert torch.equal(right, first)
    assert largest_relative(wrong, first) > 1e-2
