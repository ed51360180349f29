"""Every legal config near the fixtures runs and gives what the reference gives; what breaks is a finding, and strict."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import weight_mapping
from parity_tests.families import FAMILIES
from parity_tests.fixtures.values import fill
from parity_tests.harness import hf, ours
from parity_tests.harness.batches import Batch
from parity_tests.harness.collection import families_of, options_of
from parity_tests.harness.compare import under_lens
from parity_tests.harness.flags import config_class
from parity_tests.harness.record import Family
from parity_tests.harness.shapes import unchecked
from parity_tests.legal import BROKEN, CHANGES, Change
from weight_mapping.config import parse_config
from weight_mapping.loading import plan_for

VARIANT = {"bert": "decoder"}
"""Which to begin from, where it is not the first: one that generates."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every change of every family that has its fields."""
    if "change" in metafunc.fixturenames:
        chosen = families_of(metafunc, options_of(metafunc.config)) or list(FAMILIES)
        pairs = [(FAMILIES[name], change) for name in chosen for change in changes_of(FAMILIES[name])]
        metafunc.parametrize(("family", "change"), pairs, ids=[f"{f.name}-{change.name}" for f, change in pairs])


def base_of(family: Family) -> dict[str, Any]:
    """The config.json of the variant to begin from."""
    return dict(family.variants[VARIANT.get(family.name, next(iter(family.variants)))])


def changes_of(family: Family) -> list[Change]:
    try:
        fields = hf.config_from(config_class(family), base_of(family)).to_dict()
    except hf.Absent:
        return []
    return [change for change in CHANGES if change.concerns(family.name, fields)]


def write(folder: Path, family: Family, config: dict[str, Any]) -> None:
    """A checkpoint of this config, filled as the fixtures are. Errors: MappingError when the reference refuses it."""
    plan = plan_for(*parse_config(config, "hf"), "hf")
    shapes = {name: tuple(tensor.shape) for name, tensor in plan.backward(plan.targets).items()}
    tensors = fill(shapes, importlib.import_module(f"parity_tests.fixtures.{family.name}").FILL)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))


def steps(family: Family, folder: Path, config: dict[str, Any]) -> dict[str, Callable[[], str | None]]:
    """What is done with it, by name; each says what is wrong."""
    hf_class, backend = config.get("architectures", [family.hf_class])[0], family.backends[0]
    model = weight_mapping.load(folder, dtype=torch.float64).requires_grad_(False)
    given = family.reads(model.config)
    batch = given.standard()[0] if "images" in given.standard()[0].inputs else given.batch("legal", (2, 9))

    @cache
    def build(precision: str) -> Any:
        return hf.build(hf_class, folder, precision, backend)

    def forward() -> str | None:
        output = hf.run(build("f64"), "f64", batch.inputs)
        with torch.no_grad(), unchecked():
            outcome = under_lens(hf.logits_of(output), ours.read(model, batch.inputs))
        return None if outcome.verdict == "same" else outcome.note or f"off by {outcome.error:.1e}"

    def train() -> str | None:
        theirs = build("f32").train().requires_grad_(True)
        logits = hf.logits_of(hf.run(theirs, "f32", batch.inputs, gradients=True))
        logits.square().mean().backward()
        grads = [p.grad for p in theirs.parameters() if p.grad is not None]
        return None if all(torch.isfinite(x).all() for x in (logits, *grads)) else "not finite"

    def generate() -> str | None:
        prompt: Batch = given.prompt("legal", (2, 9))
        found = hf.generate(build("f32"), "f32", prompt, 3).sequences
        return None if found.shape == (2, 3) else f"of shape {tuple(found.shape)}"

    before: dict[str, Callable[[], str | None]] = {"generate": generate} if given.causal and not given.memory else {}
    return {"forward": forward, **before, "train": train}  # which leaves its model in training


def test_a_legal_config(family: Family, change: Change, tmp_path: Path) -> None:
    config = {**base_of(family), **change.fields}
    try:
        write(tmp_path, family, config)
    except weight_mapping.MappingError as reason:
        pytest.skip(f"the reference does not run it: {reason}")
    wrong: dict[str, str] = {}
    for name, step in steps(family, tmp_path, config).items():
        try:
            said = step()
        except Exception as error:  # of whatever kind, it is said
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        wrong |= {name: said} if said else {}
    expected = {step for each in BROKEN if each.concerns(family.name, change.name, hf.VERSION) for step in each.steps}
    news = {name: said for name, said in wrong.items() if name not in expected}
    assert not news, f"transformers {hf.VERSION} at {family.name} with {dict(change.fields)}: {news}"
    gone = expected - set(wrong)
    assert not gone, f"transformers {hf.VERSION} at {family.name} with {dict(change.fields)}: {sorted(gone)} no longer breaks"
