"""The command line as people use it: whole runs of pytest, in processes of their own, on good and on bad checkpoints."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from parity_tests.fixtures import tiny
from parity_tests.harness.case import TRAINED, Case
from parity_tests.harness.checkpoints import cannot_hold, refusals
from parity_tests.harness.record import Backend
from parity_tests.harness.recorder import Recorder
from parity_tests.harness.report import Result
from parity_tests.plugin import CHECKOUT, joined

pytestmark = pytest.mark.checkout

WEIGHT = "transformer.h.1.mlp.c_fc.weight"

LAYER = ["-q", "--no-shapes", "--precision", "f64", str(CHECKOUT / "parity_tests/test_layers.py")]
"""A short run, whatever the checkpoint."""


@dataclass
class Ran:
    """What a run came to, and what it printed."""

    code: int
    output: str

    @property
    def passed(self) -> int:
        found = re.search(r"(\d+) passed", self.output)
        return int(found.group(1)) if found else 0


@pytest.fixture
def call(tmp_path: Path) -> Callable[..., Ran]:
    """pytest in an environment that has this project's entry points, as an installation makes them."""
    entry_points = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["entry-points"]
    installed = tmp_path / "installed"
    metadata = installed / "hf_parity_here-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: hf-parity-here\nVersion: 0\n")
    lines = [f"[{group}]\n{name} = {value}" for group, names in entry_points.items() for name, value in names.items()]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    paths = os.pathsep.join(map(str, (installed, CHECKOUT)))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}

    def run(*arguments: object, folder: Path = CHECKOUT) -> Ran:
        command = [sys.executable, "-m", "pytest", *map(str, arguments)]
        done = subprocess.run(
            command, cwd=folder, env={**environment, "PYTHONPATH": paths}, capture_output=True, text=True
        )
        return Ran(done.returncode, done.stdout + done.stderr)

    return run


def changed(folder: Path, change: Callable[[dict[str, Tensor]], None] | None = None) -> Path:
    """A checkpoint of GPT-2, with something changed."""
    shutil.copytree(tiny.path_of("gpt2", "base"), folder)
    if change is not None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def not_finite(tensors: dict[str, Tensor]) -> None:
    tensors[WEIGHT][3, 5], tensors[WEIGHT][4, 0] = torch.nan, torch.inf


def surplus(tensors: dict[str, Tensor]) -> None:
    tensors["transformer.h.0.extra"] = torch.ones(2)


def test_a_value_stands_beside_its_option(call: Callable[..., Ran], tmp_path: Path) -> None:
    """Outside of the checkout, where pytest alone would look for tests, and take what it finds for the root."""
    path = changed(tmp_path / "model")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    relative = os.path.relpath(path, CHECKOUT / "weight_mapping")
    choice = ["-q", "--no-shapes", "--collect-only", "-k", "isolated and layer"]
    spaced = call("--checkpoint", path, *choice)
    below = call(*choice, "--report", tmp_path, "--checkpoint", relative, folder=CHECKOUT / "weight_mapping")
    for ran in (spaced, below):
        assert "parity_tests/test_layers.py::test_layer[gpt2-model-f64-eager-isolated-layer]" in ran.output.splitlines()
        assert ran.code == 0


def test_values_are_joined_to_their_options() -> None:
    given = ["-k", "a", "--checkpoint", "/x", "--rows", "t.py", "--precision", "f64", "--checkpoint=/y", "/z", "--checkpoint"]
    assert joined(given) == [
        *("-k", "a", "--checkpoint=/x", "--rows", "t.py", "--precision=f64", "--checkpoint=/y", "/z", "--checkpoint")
    ]


def test_what_cannot_be_verified_is_said_once_and_is_an_error_of_usage(call: Callable[..., Ran], tmp_path: Path) -> None:
    bad = changed(tmp_path / "surplus", surplus)
    no_config = changed(tmp_path / "no-config")
    (no_config / "config.json").unlink()
    ran = call("--checkpoint", bad, "--checkpoint", no_config, "--checkpoint", tmp_path / "nowhere")
    assert ran.code == pytest.ExitCode.USAGE_ERROR
    said = [line for line in ran.output.splitlines() if line]
    assert len(said) == 3, ran.output
    assert "tensor 'transformer.h.0.extra' is unexpected" in said[0]
    assert "config.json: is missing" in said[1]
    assert "nowhere: does not exist" in said[2]


def test_the_others_of_the_call_are_verified(call: Callable[..., Ran], tmp_path: Path) -> None:
    good, bad = changed(tmp_path / "good"), changed(tmp_path / "bad", not_finite)
    ran = call("--checkpoint", bad, "--checkpoint", good, "--checkpoint", good, "-n", "2", *LAYER)
    assert ran.code == pytest.ExitCode.USAGE_ERROR
    assert ran.output.count("are not finite") == 1
    assert ran.passed == 2, ran.output
    assert "gpt2: good" in ran.output
    assert "gpt2: bad" not in ran.output
    assert f"not verified, see the ERROR above: {bad}" in ran.output


def test_values_that_are_not_finite_are_named(tmp_path: Path) -> None:
    bad = changed(tmp_path / "bad", not_finite)
    says = f"{bad}/model.safetensors: in tensor '{WEIGHT}' 2 of its values are not finite, nan at [3, 5] first; "
    assert refusals([changed(tmp_path / "good"), bad]) == {bad: says + "nothing can be compared; take or make a sound file"}


@pytest.mark.level("layer")
def test_values_beyond_a_precision_are_not_covered_there(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    def large(tensors: dict[str, Tensor]) -> None:
        tensors["transformer.h.1.mlp.c_proj.bias"][3] = -7e4

    path = changed(tmp_path / "large", large)
    assert refusals([path]) == {}
    assert cannot_hold(path, torch.float32) is None
    note = cannot_hold(path, torch.float16) or ""
    assert "c_proj.bias' one of its values is beyond float16, -70000 at [3] first; the file is sound" in note
    results: list[Result] = []
    with pytest.raises(pytest.skip.Exception, match="not covered"):
        Recorder(request, results).run(Case("gpt2", f"{TRAINED}{path}", "f16", Backend("eager")), "both", "layer")
    assert [(result.verdict, result.note) for result in results] == [("not covered", note)]


def test_a_machine_that_fails_ends_the_run_once(call: Callable[..., Ran], tmp_path: Path) -> None:
    plugin = """
        from parity_tests.harness import hf

        def build(*arguments):
            raise RuntimeError("CUDA error: device-side assert triggered")

        hf.build = build
    """
    (tmp_path / "installed" / "breaking.py").write_text("\n".join(line[8:] for line in plugin.splitlines()))
    ran = call("-p", "breaking", "--family", "gpt2", *LAYER)
    assert ran.code == pytest.ExitCode.INTERRUPTED
    assert ran.output.count("device-side assert triggered") == 1
    assert re.search(r"gpt2-\w+-f64-eager-\w+-layer\]: the device failed", ran.output)
    assert "DIFFER" not in ran.output


def emptied(tensors: dict[str, Tensor]) -> None:
    tensors[WEIGHT].zero_()


def test_what_both_sides_read_alike_is_told(call: Callable[..., Ran], tmp_path: Path) -> None:
    """Agreement says nothing of the file: one that is odd is named in a line, and one that is not in none."""
    good, bad = changed(tmp_path / "good"), changed(tmp_path / "bad", emptied)
    ran = call("--checkpoint", good, "--checkpoint", bad, *LAYER)
    told = [line for line in ran.output.splitlines() if "both sides agree" in line]
    assert ran.code == 0
    assert [line.partition(", and it is odd: ")[0] for line in told] == [f"both sides agree on {bad}"]
    assert "layers.1.ffn.in_proj.weight is all zero" in told[0]
