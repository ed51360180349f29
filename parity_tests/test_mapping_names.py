"""Whole models under other names than the hub's: saved by their base class, with their experts together, or wrapped."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import weight_mapping
from parity_tests.families import FAMILIES
from parity_tests.fixtures import tiny
from parity_tests.harness import hf
from parity_tests.harness.record import Backend
from parity_tests.tiny_checkpoints import same
from weight_mapping import MappingError
from weight_mapping.families import FAMILIES as TABLES
from weight_mapping.loading import parameters_of

FIRST = {name: next(iter(record.variants)) for name, record in FAMILIES.items()}
EXPERTS = ("deepseek_v2", "deepseek_v3", "mixtral", "qwen2_moe", "qwen3_moe")


def whole(family: str, folder: Path, *, tied: bool = False) -> Path:
    """A copy of a family's first tiny checkpoint; tied: its head made its embedding."""
    source = tiny.path_of(family, FIRST[family])
    shutil.copytree(source, folder)
    if tied:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
        tensors = load_file(source / "model.safetensors")
        heads = ("lm_head.weight", "head.weight")
        save_file({n: t for n, t in tensors.items() if n not in heads}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def theirs(family: str, folder: Path) -> Any:
    return hf.build(FAMILIES[family].hf_class, folder, "f32", Backend("eager"))


def state(folder: Path) -> dict[str, Tensor]:
    return parameters_of(weight_mapping.load(folder))


HEADS = {"bert", "fnet", "poolformer"}
"""Whose heads are more than an embedding."""


@pytest.mark.parametrize("family", sorted(FIRST.keys() - HEADS))
def test_a_tied_model_saved_by_its_base_class(family: str, tmp_path: Path) -> None:
    folder = whole(family, tmp_path / "whole", tied=family not in ("bart", "marian", "t5"))
    model = theirs(family, folder)
    model.base_model.save_pretrained(tmp_path / "trunk")
    names = set(load_file(tmp_path / "trunk" / "model.safetensors"))
    trunk = TABLES[family].trunk
    assert not trunk or not any(name.startswith(trunk) for name in names)
    expected = state(folder)
    if "logits_bias" in expected:  # no part of the base class; its readers begin with zeros
        expected["logits_bias"] = torch.zeros_like(expected["logits_bias"])
    assert same(state(tmp_path / "trunk"), expected)


@pytest.mark.parametrize("family", ["llama", "rwkv", "fnet", "poolformer", "qwen3_moe"])
def test_a_model_saved_without_its_untied_head_is_refused(family: str, tmp_path: Path) -> None:
    theirs(family, tiny.path_of(family, FIRST[family])).base_model.save_pretrained(tmp_path / "trunk")
    with pytest.raises(MappingError, match=r"is missing.* a trunk without its head, which would be random: save the whole"):
        weight_mapping.load(tmp_path / "trunk")


TOGETHER = "save_original_format" in inspect.signature(transformers.PreTrainedModel.save_pretrained).parameters
Write = Callable[[Any, Path], object]


def _shards(model: Any, folder: Path) -> None:
    model.save_pretrained(folder, save_original_format=False, max_shard_size="20KB")


def _bin(model: Any, folder: Path) -> None:
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")


WAYS: dict[str, Write] = {
    "one-file": lambda model, folder: model.save_pretrained(folder, save_original_format=False),
    "shards": _shards,
    "bin": _bin,
}


@pytest.mark.skipif(not TOGETHER, reason="this release has experts apart in memory")
@pytest.mark.parametrize("base", [False, True], ids=["whole", "trunk"])
@pytest.mark.parametrize("write", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("family", EXPERTS)
def test_experts_together(family: str, write: Write, base: bool, tmp_path: Path) -> None:
    folder = whole(family, tmp_path / "whole", tied=base)
    model = theirs(family, folder)
    (tmp_path / "together").mkdir()
    write(model.base_model if base else model, tmp_path / "together")
    assert any(name.endswith("mlp.experts.gate_up_proj") for name in weight_mapping.open_checkpoint(tmp_path / "together"))
    assert same(state(tmp_path / "together"), state(folder))


@pytest.mark.skipif(not TOGETHER, reason="this release has experts apart in memory")
def test_experts_apart_and_together_in_one_file_are_refused(tmp_path: Path) -> None:
    folder = whole("mixtral", tmp_path / "whole")
    theirs("mixtral", folder).save_pretrained(tmp_path / "together", save_original_format=False)
    tensors = load_file(tmp_path / "together" / "model.safetensors")
    tensors |= {n: t for n, t in load_file(folder / "model.safetensors").items() if ".experts." in n}
    save_file(tensors, tmp_path / "together" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(MappingError, match=r"experts\.[0-9]+\.w[123]\.weight' is unexpected, no rule takes it"):
        weight_mapping.load(tmp_path / "together")


# --- names that are refused


def renamed(folder: Path, family: str, name: Callable[[str], str], **more: Tensor) -> Path:
    folder = whole(family, folder)
    tensors = {name(own): t for own, t in load_file(folder / "model.safetensors").items()}
    save_file({**tensors, **more}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def says(folder: Path, *parts: str) -> None:
    with pytest.raises(MappingError) as error:
        weight_mapping.load(folder)
    message = str(error.value)
    for part in parts:
        assert part in message
    assert len(message) <= 400
    assert str(folder / "model.safetensors") in message


PREFIXES = {
    "_orig_mod.": ("torch.compile", "save the model inside, model._orig_mod"),
    "module.": ("DataParallel, DistributedDataParallel or DeepSpeed", "model.module"),
    "base_model.model.": ("PEFT", "model.merge_and_unload()"),
    "module._orig_mod.": ("DeepSpeed and torch.compile", "model._orig_mod"),
    "_orig_mod.module.": ("torch.compile and DataParallel", "model.module"),
    "_forward_module.module.": ("Lightning Fabric and DataParallel", "model.module"),
    "student.": ("begins with 'student.': take it off",),
    "language_model.": ("begins with 'language_model.': take it off",),
}


@pytest.mark.parametrize("family", ["llama", "bert", "mixtral", "t5"])
@pytest.mark.parametrize(("prefix", "parts"), PREFIXES.items(), ids=PREFIXES)
def test_a_prefix_that_all_names_share_is_named(prefix: str, parts: tuple[str, ...], family: str, tmp_path: Path) -> None:
    says(renamed(tmp_path / "hf", family, lambda name: prefix + name), f"every name begins with '{prefix}'", *parts)


def test_a_prefix_before_names_without_the_trunks(tmp_path: Path) -> None:
    folder = renamed(tmp_path / "hf", "gpt2", lambda name: "_orig_mod." + name.removeprefix("transformer."))
    says(folder, "every name begins with '_orig_mod.'")


def test_a_prefix_that_most_names_share(tmp_path: Path) -> None:
    folder = renamed(tmp_path / "hf", "llama", lambda name: "model." + name, loss_weight=torch.ones(2))
    says(folder, " names begin with 'model.': take it off the names")


@pytest.mark.parametrize("word", ["_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod"])
def test_words_of_wrappers_between_the_parts(word: str, tmp_path: Path) -> None:
    def inside(name: str) -> str:
        return name.replace("self_attn.", f"self_attn.{word}.").replace("mlp.", f"mlp.{word}.")

    says(renamed(tmp_path / "hf", "llama", inside), f"names hold '{word}.', which ")


def test_an_adapter_in_the_file(tmp_path: Path) -> None:
    lora = {f"base_model.model.model.layers.0.self_attn.q_proj.lora_{m}.weight": torch.ones(2, 2) for m in "AB"}
    folder = renamed(tmp_path / "hf", "llama", lambda name: name, **lora)
    says(folder, "lora_", "is an adapter's, one of 2 among", "merge_and_unload()")


def test_an_adapter_alone(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    save_file({"a.lora_A.weight": torch.ones(2)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(MappingError, match=r"an adapter alone, .*: load it onto its base model with PEFT, merge_and_unload"):
        weight_mapping.load(tmp_path)


RENAMED = {
    "one": ("model.layers.1.self_attn.q_proj.weight", "model.layers.1.attention.q_proj.weight"),
    "norm": ("model.layers.1.input_layernorm.weight", "model.layers.1.attention_norm.weight"),
    "embedding": ("model.embed_tokens.weight", "model.tok_embeddings.weight"),
}


@pytest.mark.parametrize(("own", "other"), RENAMED.values(), ids=RENAMED)
def test_a_renamed_tensor_is_named_with_the_one_it_resembles(own: str, other: str, tmp_path: Path) -> None:
    folder = renamed(tmp_path / "hf", "llama", lambda name: other if name == own else name)
    says(folder, f"tensor '{other}' is unexpected, no rule takes it, and '{own}' of the same shape is missing: if it is")


def test_a_surplus_tensor_of_another_shape_resembles_nothing(tmp_path: Path) -> None:
    own, other = RENAMED["norm"]
    folder = whole("llama", tmp_path / "hf")
    tensors = load_file(folder / "model.safetensors")
    tensors[other] = torch.cat([tensors.pop(own)] * 2)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    says(folder, f"tensor '{other}' is unexpected, no rule takes it")
