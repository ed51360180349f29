"""The doctor on tiny models that learned something: what is done to them is named, and undone bit for bit."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import weight_mapping
from parity_tests import fitted
from parity_tests.doctor import command, halves, numbers, orders
from parity_tests.doctor.examination import examine
from parity_tests.doctor.glance import glance
from parity_tests.doctor.patient import Patient, read
from parity_tests.doctor.reading import NextToken
from parity_tests.doctor.report import NONE_FITS, lines
from parity_tests.families import FAMILIES
from weight_mapping.config import parse_config

Damage = Callable[[Patient], Patient]


def trained(raw: dict[str, Any], folder: Path, *, steps: int, masked: bool = False) -> Path:
    """A checkpoint of a model that was fitted, and ids for it to read beside it."""
    family, config = parse_config(raw, "hf")
    model = family.model(config).train()
    fitted.fit(model, steps=steps, masked=masked)
    weight_mapping.save(model.eval(), folder / "good")
    text = fitted.rows(12, seed=2, by=1 if masked else 2)
    (folder / "ids").write_text("\n".join(" ".join(map(str, row)) for row in text.tolist()))
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(fitted.LLAMA, tmp_path_factory.mktemp("llama"), steps=120)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(fitted.BERT, tmp_path_factory.mktemp("bert"), steps=160, masked=True)


def called(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """The command's exit code, and what it printed and said beside it."""
    code = command.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def swapped(one: str, other: str) -> Damage:
    def apply(patient: Patient) -> Patient:
        to = {one: other, other: one}
        names = {name: re.sub("|".join(to), lambda match: to[match[0]], name) for name in patient.parameters}
        return patient.with_parameters({new: patient.parameters[name] for name, new in names.items()})

    return apply


def turned(suffix: str) -> Damage:
    return lambda p: p.with_parameters({n: t.T.contiguous() for n, t in p.parameters.items() if n.endswith(suffix)})


def with_config(**changes: Any) -> Damage:
    return lambda patient: patient.with_config(replace(patient.config, **changes))


def repaired_by(name: str) -> Damage:
    """What a repair of rows or layers makes of a good file: damage, which another repair undoes."""

    def apply(patient: Patient) -> Patient:
        found = [*orders.of_rows(patient), *orders.of_layers(patient)]
        return next(repair for repair in found if repair.name == name).apply(patient)

    return apply


def saved(patient: Patient, folder: Path) -> Path:
    weight_mapping.save(patient.written(), folder)
    return folder


def bytes_of(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "model.safetensors").read_bytes(), (folder / "config.json").read_bytes()


DAMAGES: dict[str, Damage] = {
    "q and k permuted once more": repaired_by("q and k not permuted"),
    "layers in reverse": repaired_by("layers in reverse"),
    "num_attention_heads 2 for 4, num_key_value_heads 1 for 2, head_dim 16 for 8": lambda p: with_config(
        n_heads=2, n_kv_heads=1, d_head=16, rope=replace(p.config.rope, width=16)
    )(p),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named_and_undone(name: str, llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = saved(DAMAGES[name](read(llama / "good")), tmp_path / "damaged")
    code, said, _ = called(capsys, damaged, "--ids", llama / "ids", "--fix", tmp_path / "fixed")
    assert code == 1
    named = re.findall(r"with \*(.+?)\* undone|apart from it here: (.+)", said)
    assert name in {each for one, others in named for each in (one, *others.split("; "))}, said
    assert bytes_of(tmp_path / "fixed") == bytes_of(llama / "good")


def test_a_good_file_needs_no_repair(llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said, beside = called(capsys, llama / "good", "--ids", llama / "ids", "--fix", tmp_path / "fixed")
    assert code == 0
    assert NONE_FITS in said
    assert "nothing was repaired" in beside
    assert not (tmp_path / "fixed").exists()


def test_two_mistakes_at_once(llama: Path, tmp_path: Path) -> None:
    both = swapped("gate_proj", "up_proj")(turned("o_proj.weight")(read(llama / "good")))
    examined = examine(saved(both, tmp_path / "damaged"), lambda each: each, text=ids(llama))
    assert {step.repair.name for step in examined.steps} == {"gate and up swapped", "attn.o_proj transposed"}
    assert bytes_of(saved(examined.steps[-1].patient, tmp_path / "fixed")) == bytes_of(llama / "good")


def ids(folder: Path, mask: int | None = None) -> Any:
    from parity_tests.doctor.text import ids_of

    return ids_of(folder / "ids", mask)


def test_damage_that_nobody_knows_is_not_given_a_name(llama: Path, tmp_path: Path) -> None:
    good = read(llama / "good")
    drawn = torch.Generator().manual_seed(0)

    def shuffled(name: str, t: Tensor) -> Tensor:
        return (
            t[:, torch.randperm(t.shape[1], generator=drawn)]
            if name.endswith(("down_proj.weight", "o_proj.weight"))
            else t
        )

    bad = good.with_parameters({name: shuffled(name, t) for name, t in good.parameters.items()})
    examined = examine(saved(bad, tmp_path / "damaged"), lambda each: each, text=ids(llama))
    said = "\n".join(lines(examined))
    assert not examined.steps, said
    assert NONE_FITS in said


def test_a_block_that_does_harm_is_named(llama: Path, tmp_path: Path) -> None:
    good, drawn = read(llama / "good"), torch.Generator().manual_seed(0)
    name = "layers.1.ffn.down_proj.weight"
    value = good.parameters[name]
    bad = good.with_parameters({name: 2 * value.std() * torch.randn(value.shape, generator=drawn)})
    examined = examine(saved(bad, tmp_path / "damaged"), lambda each: each, text=ids(llama))
    assert not examined.steps
    said = "\n".join(lines(examined))
    assert NONE_FITS in said
    assert "odd: with *layers.1.ffn* left out" in said


def test_a_model_that_has_learned_nothing_is_not_repaired(llama: Path, tmp_path: Path) -> None:
    good, drawn = read(llama / "good"), torch.Generator().manual_seed(0)
    noise = {name: torch.randn(t.shape, generator=drawn) * 0.1 for name, t in good.parameters.items()}
    examined = examine(saved(good.with_parameters(noise), tmp_path / "noise"), lambda each: each, text=ids(llama))
    assert not examined.steps
    assert examined.odd
    assert "untrained, of another text" in "\n".join(lines(examined))


def test_numbers_are_odd_without_any_text(llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = read(llama / "good")
    name = "layers.1.ffn.up_proj.weight"

    def says(**changed: Tensor) -> list[str]:
        return [oddity.says for oddity in numbers.oddities(good.with_parameters(dict(changed)))]

    value = good.parameters[name]
    assert says() == []
    assert says(**{name: torch.zeros_like(value)}) == [f"{name} is all zero; of its sisters in other layers 0% is"]
    half = torch.cat([value[:24], torch.zeros_like(value[24:])])
    assert says(**{name: half})[0].startswith(f"{name} is zero in 50% of its values")
    assert re.fullmatch(
        rf"{name} is 1[3-9][.\d]* times as large as its sisters in other layers", says(**{name: value * 16})[0]
    )
    first = {n.replace("layers.0", "layers.2"): t for n, t in good.parameters.items() if n.startswith("layers.0")}
    assert says(**first) == ["layers.0 and layers.2 are the same layer"]
    wrong = value.clone()
    wrong[3, 5] = torch.nan
    path = saved(good.with_parameters({name: wrong}), tmp_path / "nan")
    code, said, _ = called(capsys, path, "--ids", llama / "ids")
    assert code == 1
    assert f"{name}: 1 of 1536 values are not finite, nan at [3, 5] first" in said


def test_another_scale_is_undone(llama: Path, tmp_path: Path) -> None:
    good = read(llama / "good")
    name = "layers.1.ffn.down_proj.weight"
    bad = good.with_parameters({name: good.parameters[name] * 16})
    examined = examine(saved(bad, tmp_path / "damaged"), lambda each: each, text=ids(llama))
    step = examined.steps[0]
    found = {repair.name: repair for repair in (step.repair, *step.alike)}
    repaired = found[f"{name} times 16"].apply(bad)
    assert torch.equal(repaired.parameters[name], good.parameters[name])


def test_rows_of_q_and_k_show_their_order(llama: Path) -> None:
    """Norms that are alike where rows turn together, as training leaves them."""
    good = read(llama / "good")
    sizes = torch.tensor([1.0, 0.2, 0.3, 0.8]).repeat(2)[:, None]
    drawn = torch.Generator().manual_seed(0)
    rows = {
        n: torch.randn(t.shape, generator=drawn) * sizes.repeat(len(t) // 8, 1)
        for n, t in good.parameters.items()
        if n.endswith(("q_proj.weight", "k_proj.weight"))
    }
    sound = good.with_parameters(rows)
    found = halves.alike(sound)
    assert found is not None
    assert not found.odd
    permuted = halves.alike(DAMAGES["q and k permuted once more"](sound))
    assert permuted is not None
    assert permuted.odd


def test_a_departure_that_looks_ahead_is_no_repair(llama: Path) -> None:
    patient = read(llama / "good")
    reading = NextToken(fitted.rows(8, seed=2))
    ahead = FAMILIES["llama"].deviation("a query sees one token ahead")
    assert reading.cheats(replace(patient, departures=(ahead,)).model())
    assert not reading.cheats(patient.model())


def test_a_masked_model(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = saved(swapped("q_proj", "v_proj")(read(bert / "good")), tmp_path / "damaged")
    labels = {"id2label": {"0": "no", "1": "yes"}}  # changes no result, and is kept
    (damaged / "config.json").write_text(json.dumps(json.loads((damaged / "config.json").read_text()) | labels))
    given = ("--ids", bert / "ids", "--mask", fitted.MASK)
    code, said, _ = called(capsys, damaged, *given, "--fix", tmp_path / "fixed")
    assert code == 1, said
    assert "*q and v swapped* undone" in said
    assert bytes_of(tmp_path / "fixed")[0] == bytes_of(bert / "good")[0]
    assert json.loads(bytes_of(tmp_path / "fixed")[1]) == json.loads(bytes_of(bert / "good")[1]) | labels
    code, _, beside = called(capsys, bert / "good", "--ids", bert / "ids")
    assert code == 4
    assert "which token hides others is not known; give its id by --mask" in beside


def test_the_first_layers_alone(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said, _ = called(capsys, llama / "good", "--layers", 2)
    assert code == 0
    assert said.startswith("llama, 2 layers")
    assert "the first layers alone give no probabilities" in said


def test_refusals_are_one_sentence(llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*arguments: object) -> str:
        code, said, beside = called(capsys, *arguments)
        assert (code, said) == (4, "")
        assert beside.count("\n") == 1
        return beside

    few, wrong, strange = (tmp_path / name for name in ("few", "wrong", "strange"))
    few.write_text("1 2 3 4 5")
    wrong.write_text("one two")
    strange.write_text(" ".join(["99"] * 300))
    assert "does not exist" in refused(tmp_path / "nowhere")
    assert "the text has 5 tokens" in refused(llama / "good", "--ids", few)
    assert "holds no token ids" in refused(llama / "good", "--ids", wrong)
    assert "token 99 is none of the model's 13" in refused(llama / "good", "--ids", strange)
    assert "there is no tokenizer" in refused(llama / "good", "--text", few)
    assert "is not an empty folder" in refused(llama / "good", "--ids", few, "--fix", llama)
    broken = tmp_path / "broken"
    shutil.copytree(llama / "good", broken)
    (broken / "tokenizer.json").write_text(json.dumps({"model": {}}))
    assert "is no tokenizer" in refused(broken)


def test_a_glance_says_what_shows_at_once(llama: Path, tmp_path: Path) -> None:
    good = read(llama / "good")
    assert glance(llama / "good") is None
    name = "layers.1.ffn.up_proj.weight"
    bad = good.with_parameters({name: torch.zeros_like(good.parameters[name])})
    assert glance(saved(bad, tmp_path / "zero")) == f"{name} is all zero; of its sisters in other layers 0% is"
