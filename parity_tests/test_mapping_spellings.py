"""Names that files spell in several ways, and what files hold besides: as hubs and earlier releases wrote BERT and GPT-2."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import weight_mapping
from parity_tests.fixtures import tiny
from parity_tests.harness import hf
from parity_tests.harness.compare import BAR, largest_relative
from parity_tests.harness.record import Backend
from parity_tests.tiny_checkpoints import same
from weight_mapping import MappingError
from weight_mapping.plan import plan
from weight_mapping.rules import Alias, Drop, Table, rename

Names = Callable[[str], str]


def written(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Path:
    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def checkpoint(family: str, variant: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the config of a tiny checkpoint, to be changed."""
    path = tiny.path_of(family, variant)
    return load_file(path / "model.safetensors"), json.loads((path / "config.json").read_text())


def state(path: Path) -> dict[str, Tensor]:
    return weight_mapping.load(path).state_dict()


# --- the algebra


def test_an_alias_is_another_spelling_or_none() -> None:
    assert Alias("trunk.*", "*")("trunk.a.weight") == "a.weight"
    assert Alias("*", "trunk.*")("a.weight") == "trunk.a.weight"
    assert Alias("*norm.bias", "*norm.beta")("a.norm.bias") == "a.norm.beta"
    assert Alias("*norm.bias", "*norm.beta")("a.norm.weight") is None
    assert Alias("ab*ba", "*")("aba") is None, "what the star stands for lies between the two"


def test_aliases_add_up() -> None:
    table = Table(index={}, rules=(), aliases=(Alias("trunk.*", "*"), Alias("*.bias", "*.beta")))
    assert set(table.spellings("trunk.a.bias")) == {"trunk.a.bias", "a.bias", "trunk.a.beta", "a.beta"}


def test_a_spelling_that_two_tensors_share_is_an_error() -> None:
    table = Table(
        index={}, rules=(rename("a.x", "x"), rename("b.x", "y")), aliases=(Alias("a.*", "*"), Alias("b.*", "*"))
    )
    with pytest.raises(MappingError, match="'x' is claimed twice"):
        plan(table, {"x": torch.zeros(2), "y": torch.zeros(2)})


def test_what_is_dropped_has_its_spellings_too() -> None:
    table = Table(
        index={},
        rules=(rename("a.x", "x"),),
        drops=(Drop(source="a.buffer", reason="a buffer"),),
        aliases=(Alias("a.*", "*"),),
    )
    tensors = {"x": torch.ones(2), "buffer": torch.ones(1, dtype=torch.bool)}
    assert same(plan(table, {"x": torch.zeros(2)}).spelled_as(tensors).forward(tensors), {"x": torch.ones(2)})


def test_no_tensor_is_dropped_beside_itself() -> None:
    table = Table(
        index={},
        rules=(rename("a.second", "x"),),
        drops=(Drop(source="a.first", reason="the second is read", beside="a.second"),),
        aliases=(Alias("*.second", "*.first"),),
    )
    only, both = {"a.first": torch.ones(2)}, {"a.first": torch.zeros(2), "a.second": torch.ones(2)}
    for tensors in (only, both):
        assert same(plan(table, {"x": torch.zeros(2)}).spelled_as(tensors).forward(tensors), {"x": torch.ones(2)})


# --- names


def tensorflow(name: str) -> str:
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


SPELLED: dict[str, tuple[str, str, Names]] = {
    "gpt2-without-prefix": ("gpt2", "base", lambda name: name.removeprefix("transformer.")),
    "bert-without-prefix": ("bert", "mlm", lambda name: name.removeprefix("bert.")),
    "bert-gamma-beta": ("bert", "pretraining", tensorflow),
    "bert-both": ("bert", "cross", lambda name: tensorflow(name.removeprefix("bert."))),
}


@pytest.mark.parametrize(("family", "variant", "spelled"), SPELLED.values(), ids=SPELLED)
def test_every_spelling_gives_the_same_bits(family: str, variant: str, spelled: Names, tmp_path: Path) -> None:
    tensors, config = checkpoint(family, variant)
    renamed = {spelled(name): tensor for name, tensor in tensors.items()}
    assert renamed.keys() != tensors.keys()
    assert same(state(written(tmp_path, renamed, config)), state(tiny.path_of(family, variant)))


def test_a_tensor_in_two_spellings_is_an_error(tmp_path: Path) -> None:
    tensors, config = checkpoint("gpt2", "base")
    tensors["ln_f.bias"] = tensors["transformer.ln_f.bias"].clone()
    with pytest.raises(MappingError, match=r"'ln_f\.bias' is unexpected, no rule takes it"):
        weight_mapping.load(written(tmp_path, tensors, config))


def test_errors_speak_of_the_names_in_the_file(tmp_path: Path) -> None:
    tensors, config = checkpoint("gpt2", "base")
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    tensors["h.1.ln_1.weight"] = tensors["h.1.ln_1.weight"][:-1].clone()
    expected = r"'h.1.ln_1.weight' has shape \(35,\) where \(36,\) is expected; config.json says n_embd 36"
    with pytest.raises(MappingError, match=expected):
        weight_mapping.load(written(tmp_path, tensors, config))


# --- what files hold besides


def test_masks_of_old_gpt2_files_are_dropped(tmp_path: Path) -> None:
    tensors, config = checkpoint("gpt2", "cross")
    mask = torch.ones(1, 1, 8, 8, dtype=torch.uint8).tril()
    for block in ("attn", "crossattention"):
        tensors |= {f"transformer.h.1.{block}.bias": mask.clone(), f"transformer.h.1.{block}.masked_bias": torch.tensor(-1e4)}
    assert same(state(written(tmp_path, tensors, config)), state(tiny.path_of("gpt2", "cross")))


def test_heads_that_the_class_does_not_have_are_dropped(tmp_path: Path) -> None:
    """bert-base-uncased is one: its config names BertForMaskedLM, and its file holds all of its pre-training."""
    tensors, config = checkpoint("bert", "pretraining")
    config["architectures"] = ["BertForMaskedLM"]
    tensors["bert.embeddings.position_ids"] = torch.arange(61)[None]
    model = weight_mapping.load(written(tmp_path, tensors, config))
    assert model.pooler is None
    assert model.nsp_head is None
    full = state(tiny.path_of("bert", "pretraining"))
    assert same(model.state_dict(), {name: t for name, t in full.items() if not name.startswith(("pooler.", "nsp_head."))})


@pytest.mark.parametrize(("variant", "heads"), {"mlm": "mlm", "pretraining": "pretraining"}.items())
def test_without_a_class_the_tensors_tell_the_heads(variant: str, heads: str, tmp_path: Path) -> None:
    tensors, config = checkpoint("bert", variant)
    del config["architectures"]
    assert weight_mapping.load(written(tmp_path, tensors, config)).config.heads == heads


@pytest.mark.parametrize("kept", ["cls.predictions.bias", "cls.predictions.decoder.bias"])
def test_one_of_two_copies_is_enough(kept: str, tmp_path: Path) -> None:
    """transformers 4 wrote the first, transformers 5 reads the second: what is saved here has both."""
    tensors, config = checkpoint("bert", "untied")
    for name in {"cls.predictions.bias", "cls.predictions.decoder.bias"} - {kept}:
        del tensors[name]
    model = weight_mapping.load(written(tmp_path, tensors, config))
    assert same(model.state_dict(), state(tiny.path_of("bert", "untied")))
    weight_mapping.save(model, tmp_path / "again")
    assert same(load_file(tmp_path / "again" / "model.safetensors"), checkpoint("bert", "untied")[0])


def test_copies_that_are_tied_may_not_differ(tmp_path: Path) -> None:
    tensors, config = checkpoint("bert", "mlm")
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"] + 1
    with pytest.raises(MappingError, match=r"'cls.predictions.bias' and 'cls.predictions.decoder.bias' differ"):
        weight_mapping.load(written(tmp_path, tensors, config))


# --- a BERT without its head


@pytest.mark.parametrize("prefix", ["", "bert."], ids=["bare", "prefixed"])
def test_a_bert_without_its_head(prefix: str, tmp_path: Path) -> None:
    """Sentence encoders are stored so: the layers and the pooler, and no prefix."""
    tensors, config = checkpoint("bert", "pretraining")
    config["architectures"] = ["BertModel"]
    trunk = {n.removeprefix("bert."): t for n, t in tensors.items() if n.startswith("bert.")}
    others = {n: t for n, t in tensors.items() if n.startswith("cls.")} if prefix else {}
    path = written(tmp_path, {prefix + name: tensor for name, tensor in trunk.items()} | others, config)
    model = weight_mapping.load(path, dtype=torch.float64).requires_grad_(False)
    theirs = hf.build("BertModel", path, "f64", Backend("eager"))

    pooled: list[Tensor] = []
    model.pooler.register_forward_hook(lambda module, args, output: pooled.append(output))
    real = torch.ones(2, 11, dtype=torch.bool)
    real[1, 7:] = False
    ids = torch.arange(22).view(2, 11)
    output = hf.run(theirs, "f64", {"ids": ids, "real": real})
    assert largest_relative(output.last_hidden_state[real], model(ids, real=real)[real]) < BAR
    assert largest_relative(output.pooler_output, pooled[0]) < BAR

    weight_mapping.save(model, tmp_path / "again")
    assert same(load_file(tmp_path / "again" / "model.safetensors"), {n: t.double() for n, t in trunk.items()})
