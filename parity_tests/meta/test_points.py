"""What the command line chooses: a checkpoint on disk is taken for what it is, whatever its family."""

import json
import shutil
from pathlib import Path

import pytest

from parity_tests.families import FAMILIES
from parity_tests.fixtures import real, tiny
from parity_tests.harness.case import TRAINED, Case
from parity_tests.harness.points import Options, cases, config_of, trained_checkpoints
from parity_tests.harness.record import Backend


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_is_taken_for_what_it_is(family: str) -> None:
    record = FAMILIES[family]
    variant = next(iter(record.variants))
    made = Case(family, variant, "f64", record.backends[0])
    (case,) = cases(Options(checkpoints=[made.source]), ("f64",))
    assert (case.family, case.hf_class, case.backend) == (family, made.hf_class, made.backend)
    assert config_of(case) == config_of(made)


def test_a_config_that_names_no_class_is_completed_by_the_tensors(tmp_path: Path) -> None:
    folder = tmp_path / "named-1.0"
    shutil.copytree(tiny.path_of("bert", "pretraining"), folder)
    config = json.loads((folder / "config.json").read_text())
    for named in (None, ["AntiBERTy"]):
        (folder / "config.json").write_text(json.dumps(config | {"architectures": named}))
        (case,) = cases(Options(checkpoints=[folder]), ("f64",))
        assert case.hf_class == "BertForPreTraining"
        assert case.name == "named-1.0", "only a file has an ending"


def test_a_file_is_called_by_its_name_without_the_ending() -> None:
    assert Case("llama", f"{TRAINED}/models/SmolLM2.Q4_1.gguf", "f64", Backend("eager")).name == "SmolLM2.Q4_1"


def test_a_backend_that_is_asked_for_is_taken_once() -> None:
    path = tiny.path_of("gpt2", "base")
    found = cases(Options(checkpoints=[path], attention=["eager"]), ("f64", "f32"))
    assert [(case.precision, str(case.backend)) for case in found] == [("f64", "eager"), ("f32", "eager")]


def test_what_is_not_free_is_run_by_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "path_of", lambda name: Path(name))
    found = trained_checkpoints(Options(trained=True))
    assert found == [Path(name) for name, checkpoint in real.CHECKPOINTS.items() if not checkpoint.opt_in]
    assert trained_checkpoints(Options(trained=True, checkpoints=[Path("/iglm")])) == [Path("/iglm")]
