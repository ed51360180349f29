"""Damaged, incomplete and contradictory checkpoints: each is refused in one sentence that says where and what."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from parity_tests.tiny_checkpoints import CONFIG, tensors_of, write_config, write_folder, write_gguf, write_shards
from weight_mapping import MappingError, load, open_checkpoint, save
from weight_mapping.config import parse_config

EMBEDDING, NORM = "model.embed_tokens.weight", "model.layers.1.input_layernorm.weight"
INDEX = "model.safetensors.index.json"


def refused(path: Path, message: str) -> None:
    """Loading `path` raises MappingError with `message` in it, in one line."""
    with pytest.raises(MappingError) as error:
        load(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


# --- tensors


TENSORS = tensors_of(CONFIG)

WRONG_TENSORS: dict[str, tuple[dict[str, Tensor | None], str]] = {
    "missing": (
        {NORM: None},
        f"tensor '{NORM}' is missing, and 'layers.1.attn_norm.weight' is made of it",
    ),
    "missing-head": (
        {"lm_head.weight": None},
        "'lm_head.weight' is missing, and 'lm_head.weight' is made of it; config.json says tie_word_embeddings false",
    ),
    "unexpected": (
        {"model.layers.0.self_attn.q_norm.weight": torch.ones(8)},
        "tensor 'model.layers.0.self_attn.q_norm.weight' is unexpected, no rule takes it",
    ),
    "unexpected-bias": (
        {"model.layers.0.mlp.up_proj.bias": torch.ones(40)},
        "'model.layers.0.mlp.up_proj.bias' is unexpected, no rule takes it; config.json says mlp_bias false",
    ),
    "shape": (
        {NORM: torch.ones(23)},
        f"tensor '{NORM}' has shape (23,) where (24,) is expected; config.json says hidden_size 24",
    ),
    "rank": ({NORM: torch.ones(1, 24)}, f"'{NORM}' has shape (1, 24) where (24,) is expected"),
    "integer": (
        {NORM: torch.ones(24, dtype=torch.int32)},
        f"tensor '{NORM}' is torch.int32 where a float of 16 bits or more is expected",
    ),
    "float8": (
        {NORM: torch.ones(24).to(torch.float8_e4m3fn)},
        f"'{NORM}' is torch.float8_e4m3fn where a float of 16 bits or more is expected; FP8 is not supported yet: ",
    ),
}


@pytest.mark.parametrize(("changes", "message"), WRONG_TENSORS.values(), ids=WRONG_TENSORS)
@pytest.mark.parametrize("write", [write_folder, write_shards], ids=["one-file", "shards"])
def test_wrong_tensor(
    write: Callable[..., Path], changes: dict[str, Tensor | None], message: str, tmp_path: Path
) -> None:
    tensors = {name: t for name, t in {**TENSORS, **changes}.items() if t is not None}
    folder = write(tmp_path, CONFIG, tensors)
    lost = any(t is None for t in changes.values())  # no shard holds it, so the list of names is at fault
    name = next(iter(changes))
    listing = "model.safetensors" if write is write_folder else INDEX
    file = folder / listing if lost else open_checkpoint(folder).file(name)
    refused(folder, f"{file}: ")
    refused(folder, message)


CONTRADICTIONS = {
    "vocab_size": ({"vocab_size": 38}, "has shape (37, 24) where (38, 24) is expected; config.json says vocab_size 38"),
    "hidden_size": ({"hidden_size": 32}, "config.json says hidden_size 32"),
    "intermediate_size": ({"intermediate_size": 48}, "config.json says intermediate_size 48"),
    "heads": ({"num_attention_heads": 4}, "config.json says num_attention_heads 4 and head_dim 8"),
    "kv-heads": ({"num_key_value_heads": 3}, "config.json says num_key_value_heads 3 and head_dim 8"),
    "more-layers": ({"num_hidden_layers": 3}, "is made of it; config.json says num_hidden_layers 3"),
    "fewer-layers": ({"num_hidden_layers": 1}, "is unexpected, no rule takes it; config.json says num_hidden_layers 1"),
    "biases": ({"attention_bias": True}, "config.json says attention_bias true"),
    "tie": ({"tie_word_embeddings": True}, f"'{EMBEDDING}' and 'lm_head.weight' differ where the config ties them"),
}


@pytest.mark.parametrize(("changes", "message"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_config_that_contradicts_its_tensors(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    refused(write_folder(tmp_path, {**CONFIG, **changes}, TENSORS), message)


# --- containers


def test_no_checkpoint(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "nowhere: does not exist")
    refused(tmp_path, "is neither a folder with model.safetensors, pytorch_model.bin or an index of either nor a .gguf file")


@pytest.mark.parametrize("keep", [0, 5, 300, -1], ids=["empty", "in-its-length", "in-its-header", "one-byte-short"])
def test_truncated_safetensors(keep: int, tmp_path: Path) -> None:
    file = write_folder(tmp_path, CONFIG, TENSORS) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    refused(tmp_path, f"{file}: not a complete safetensors file")


def test_corrupt_safetensors(tmp_path: Path) -> None:
    file = write_folder(tmp_path, CONFIG, TENSORS) / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b"data_offsets", b"data_offsetz", 1))
    refused(tmp_path, f"{file}: not a complete safetensors file")


def write_bin(folder: Path, content: object) -> Path:
    write_config(folder, CONFIG)
    torch.save(content, folder / "pytorch_model.bin")
    return folder / "pytorch_model.bin"


def test_an_old_folder_of_bin_files(tmp_path: Path) -> None:
    write_bin(tmp_path / "one", TENSORS)
    shards = [dict(list(TENSORS.items())[start::2]) for start in (0, 1)]
    write_config(tmp_path / "two", CONFIG)
    for i, shard in enumerate(shards):
        torch.save(shard, tmp_path / "two" / f"pytorch_model-{i}.bin")
    places = {name: f"pytorch_model-{i}.bin" for i, shard in enumerate(shards) for name in shard}
    (tmp_path / "two" / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    torch.save(TENSORS, tmp_path / "legacy.bin", _use_new_zipfile_serialization=False)
    write_config(tmp_path / "old", CONFIG)
    (tmp_path / "legacy.bin").rename(tmp_path / "old" / "pytorch_model.bin")
    for folder in ("one", "two", "old"):
        held = open_checkpoint(tmp_path / folder)
        assert {name: t.tolist() for name, t in held.items()} == {name: t.tolist() for name, t in TENSORS.items()}
        load(tmp_path / folder)


class Code:
    """What a hostile file would run when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("ran"),))


def test_a_bin_file_that_would_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = write_bin(tmp_path / "hf", {**TENSORS, "more": Code()})
    refused(tmp_path / "hf", f"{file}: not a complete file of tensors and nothing else (")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("keep", [0, 5, 300, -1], ids=["empty", "in-its-length", "in-its-header", "one-byte-short"])
def test_truncated_bin(keep: int, tmp_path: Path) -> None:
    file = write_bin(tmp_path, TENSORS)
    file.write_bytes(file.read_bytes()[:keep])
    refused(tmp_path, f"{file}: not a complete file of tensors and nothing else (")


@pytest.mark.parametrize("content", [[torch.ones(2)], {"a": {"b": torch.ones(2)}}, {3: torch.ones(2)}])
def test_a_bin_file_of_something_else(content: object, tmp_path: Path) -> None:
    file = write_bin(tmp_path, content)
    refused(tmp_path, f"{file}: holds more than tensors by name")


def test_truncated_gguf(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf", CONFIG, TENSORS).read_bytes()
    for keep in [0, 3, *range(20, len(whole), len(whole) // 50), len(whole) - 64]:
        (tmp_path / "cut.gguf").write_bytes(whole[:keep])
        refused(tmp_path / "cut.gguf", "cut.gguf: not a complete GGUF file")


def test_corrupt_gguf(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", CONFIG, TENSORS)
    file.write_bytes(b"GGML" + file.read_bytes()[4:])
    refused(file, f"{file}: not a complete GGUF file (GGUF magic invalid)")


def test_gguf_with_an_absurd_count(tmp_path: Path) -> None:
    kinds = {"tokenizer.ggml.token_type": [1, 2]}
    file = write_gguf(tmp_path / "model.gguf", CONFIG, TENSORS, metadata=kinds)
    content = bytearray(file.read_bytes())
    count = content.index(b"token_type") + len("token_type") + 4 + 4  # past the types of the value and its elements
    assert content[count : count + 8] == (2).to_bytes(8, "little")
    content[count : count + 8] = (1 << 60).to_bytes(8, "little")
    file.write_bytes(content)
    refused(file, f"{file}: not a complete GGUF file (it ends too early)")


def test_gguf_of_the_other_byte_order(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "llama", endianess=gguf.GGUFEndian.BIG)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    refused(file, f"{file}: is a GGUF of the other byte order")


def write_index(folder: Path, content: object) -> None:
    (folder / INDEX).write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize("place", ["../x.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "", "a\\b", 3])
def test_index_that_names_a_file_outside_the_folder(place: object, tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    write_config(folder, CONFIG)
    save_file({EMBEDDING: torch.ones(2)}, tmp_path / "x.safetensors")
    write_index(folder, {"weight_map": {EMBEDDING: place}})
    refused(folder, f"{INDEX}: puts tensor '{EMBEDDING}' in {place!r}, which is no name of a file in its folder")


def test_a_shard_may_be_a_link_as_in_the_hubs_cache(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "snapshot", CONFIG, TENSORS)
    for file in list(folder.iterdir()):
        file.rename(tmp_path / file.name)
        file.symlink_to(tmp_path / file.name)
    load(folder)


def test_index_that_names_a_missing_shard(tmp_path: Path) -> None:
    write_shards(tmp_path, CONFIG, TENSORS)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    refused(tmp_path, f"{INDEX}: names the shard 'model-00002-of-00003.safetensors', which is missing")


def test_index_and_shard_disagree(tmp_path: Path) -> None:
    write_shards(tmp_path, CONFIG, TENSORS, n=1)
    file = "model-00001-of-00001.safetensors"
    files = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    write_index(tmp_path, {"weight_map": {**files, "extra": file}})
    refused(tmp_path, f"{file}: tensor 'extra' is missing, and {INDEX} puts it here")
    write_index(tmp_path, {"weight_map": {name: file for name in files if name != NORM}})
    refused(tmp_path, f"{file}: tensor '{NORM}' is unexpected, {INDEX} does not put it here")


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    write_shards(tmp_path, CONFIG, TENSORS, n=2)
    file = tmp_path / "model-00002-of-00002.safetensors"
    second = {name: t for name, t in TENSORS.items() if open_checkpoint(tmp_path).file(name) == file}
    save_file({**second, EMBEDDING: TENSORS[EMBEDDING]}, file)
    refused(tmp_path, f"{file}: tensor '{EMBEDDING}' is unexpected, {INDEX} does not put it here")


def test_index_with_a_key_twice(tmp_path: Path) -> None:
    write_shards(tmp_path, CONFIG, TENSORS, n=1)
    write_index(tmp_path, (tmp_path / INDEX).read_text().replace('{"metadata"', '{"weight_map": {}, "metadata"'))
    refused(tmp_path, f"{INDEX}: has the key 'weight_map' twice")


@pytest.mark.parametrize("content", [{}, {"weight_map": []}], ids=["no-map", "a-list"])
def test_index_without_a_map(content: object, tmp_path: Path) -> None:
    write_index(tmp_path, content)
    refused(tmp_path, f"{INDEX}: has no 'weight_map' from tensors to files")


def test_asking_for_a_name_that_is_not_there(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", CONFIG, TENSORS)
    file = write_gguf(tmp_path / "model.gguf", CONFIG, TENSORS)
    for checkpoint in (open_checkpoint(folder), open_checkpoint(file)):
        with pytest.raises(MappingError, match="tensor 'nonsense' is missing"):
            checkpoint.shape("nonsense")
        with pytest.raises(KeyError):
            checkpoint["nonsense"]
        assert checkpoint.get("nonsense") is None


# --- configs


def test_config_missing_or_no_json(tmp_path: Path) -> None:
    file = write_folder(tmp_path, CONFIG, TENSORS) / "config.json"
    for content, message in {
        '{"model_type": "llama"': "is not valid JSON",
        "[1, 2]": "holds no JSON object",
        '{"vocab_size": 3, "vocab_size": 4}': "has the key 'vocab_size' twice",
    }.items():
        file.write_text(content)
        refused(tmp_path, f"{file}: {message}")
    file.write_bytes(b"\xff\xfe")
    refused(tmp_path, f"{file}: is not valid JSON")
    file.unlink()
    refused(tmp_path, f"{file}: is missing")


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 32,
}
WRONG_CONFIGS = {
    "model_type": ({"model_type": "gpt9"}, "model_type 'gpt9' is not supported; supported are bart, bert, deepseek_v2"),
    "no-model_type": ({"model_type": None}, "lacks the key 'model_type'; add it, one of bart, bert, deepseek_v2"),
    "unknown-key": ({"qk_norm": True}, "the key 'qk_norm' is unknown and could change the maths"),
    "kind": ({"hidden_size": "24"}, 'hidden_size is "24" and must be a whole number above 0'),
    "true-is-no-number": ({"num_attention_heads": True}, "num_attention_heads is true and must be a whole number"),
    "negative": ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0 and must be a number above 0"),
    "not-a-number": ({"rope_theta": float("nan")}, "rope_theta is NaN and must be a number above 0"),
    "number-is-no-flag": ({"attention_bias": 1}, "attention_bias is 1 and must be true or false"),
    "pretraining_tp": ({"pretraining_tp": 2}, "pretraining_tp is 2, and only 1 is supported"),
    "quantised": (
        {"quantization_config": {"bits": 4}},
        'quantization_config is {"bits": 4}, and only null is supported',
    ),
    "partial-rotary": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, and only null or 1 is supported"),
    "activation": ({"hidden_act": "mish"}, 'hidden_act "mish" is not one of silu'),
    "kv-heads": ({"num_key_value_heads": 4}, "num_attention_heads 6 is no multiple of num_key_value_heads 4"),
    "odd-head": ({"head_dim": 7}, "head_dim 7 is odd, and RoPE turns pairs"),
    "no-head_dim": (
        {"head_dim": None, "num_attention_heads": 10},
        "hidden_size 24 is no multiple of num_attention_heads 10; give the width of a head",
    ),
    "unknown-scaling": ({"rope_scaling": {"type": "ntk"}}, "rope_scaling.rope_type 'ntk' is not supported yet"),
    "no-short-factor": ({"rope_scaling": {"type": "longrope"}}, "lacks the key 'rope_scaling.short_factor'; add it"),
    "factors-of-another-width": (
        {"rope_scaling": {**LONGROPE, "long_factor": [2.0, 3.0, 4.0]}},
        "rope_scaling.long_factor has 3 numbers, and RoPE turns 4 pairs",
    ),
    "factor-is-no-list": (
        {"rope_scaling": {**LONGROPE, "short_factor": 2.0}},
        "rope_scaling.short_factor is 2.0 and must be a list of numbers above 0",
    ),
    "factor-of-nought": (
        {"rope_scaling": {**LONGROPE, "short_factor": [1.0, 1.0, 1.0, 0]}},
        "rope_scaling.short_factor is [1.0, 1.0, 1.0, 0] and must be a list of numbers above 0",
    ),
    "two-originals": (
        {"rope_scaling": LONGROPE, "original_max_position_embeddings": 16},
        "original_max_position_embeddings 16 contradicts rope_scaling.original_max_position_embeddings 32",
    ),
    "no-factor": ({"rope_scaling": {"rope_type": "linear"}}, "lacks the key 'rope_scaling.factor'; add it"),
    "no-low-factor": (
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        "lacks the key 'rope_scaling.low_freq_factor'; add it",
    ),
    "key-of-another-scaling": (
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "beta_fast": 32}},
        "rope_scaling.beta_fast means nothing to rope_scaling.rope_type 'linear'; remove it",
    ),
    "no-type": (
        {"rope_scaling": {"factor": 2.0}},
        "rope_scaling.factor means nothing to rope_scaling.rope_type 'default'",
    ),
    "unknown-scaling-key": (
        {"rope_scaling": {**YARN, "ramp": 1}},
        "the key 'rope_scaling.ramp' is unknown and could change the maths",
    ),
    "scaling-is-no-object": ({"rope_scaling": 3}, "rope_scaling is 3, and only null is supported"),
    "null-truncate": (
        {"rope_scaling": {**YARN, "truncate": None}},
        "rope_scaling.truncate is null and must be true or",
    ),
    "two-types": (
        {"rope_scaling": {**YARN, "type": "linear"}},
        'rope_scaling.type "linear" contradicts rope_scaling.rope_type "yarn"',
    ),
    "two-thetas": (
        {"rope_parameters": {"rope_theta": 1e4}},
        "rope_parameters.rope_theta 10000.0 contradicts rope_theta 5000.0; keep the right one",
    ),
    "two-generations": (
        {"rope_scaling": YARN, "rope_parameters": {**YARN, "factor": 2.0}},
        "rope_parameters.factor 2.0 contradicts rope_scaling.factor 4.0",
    ),
}


@pytest.mark.parametrize(("changes", "message"), WRONG_CONFIGS.values(), ids=WRONG_CONFIGS)
def test_wrong_config(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MappingError) as error:
        parse_config({**CONFIG, **changes}, "hf", where="somewhere/config.json")
    assert str(error.value).startswith(f"somewhere/config.json: {message}")


WRONG_METADATA: dict[str, tuple[dict[str, Any], str]] = {
    "unknown-key": ({"llama.logit_scale": 2.0}, "the key 'llama.logit_scale' is unknown and could change the maths"),
    "experts": ({"llama.expert_count": 8}, "llama.expert_count is 8, and only 0 is supported"),
    "split": ({"split.count": 2}, "is one of 2 parts, and 'model.gguf' says otherwise; give all parts their names back"),
    "lacking": ({"llama.embedding_length": None}, "lacks the key 'llama.embedding_length'; add it"),
    "longrope": ({"llama.rope.scaling.type": "longrope"}, "llama.rope.scaling.type 'longrope' is not supported yet"),
    "value-length": ({"llama.attention.value_length": 6}, "llama.attention.value_length 6 contradicts"),
    "vocabulary": (
        {"llama.vocab_size": 38},
        "(37, 24) where (38, 24) is expected; model.gguf says llama.vocab_size 38",
    ),
    "layers": ({"llama.block_count": 3}, "model.gguf says llama.block_count 3"),
    "absurd-layers": (
        {"llama.block_count": 1 << 31},
        "asks for 2147483648 times 'layer', and there are only 21 tensors",
    ),
    "architecture": ({"general.architecture": "gpt9"}, "general.architecture 'gpt9' is not supported"),
}


@pytest.mark.parametrize(("metadata", "message"), WRONG_METADATA.values(), ids=WRONG_METADATA)
def test_wrong_gguf_metadata(metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", CONFIG, TENSORS, metadata=metadata)
    refused(file, message)


WRONG_DIVISORS = {
    "too-few": ([1.0, 8.0], None, "rope_freqs.weight has 2 numbers, and RoPE turns 4 pairs"),
    "nought": ([1.0, 0.0, 3.7, 8.0], None, "rope_freqs.weight is [1.0, 0.0, "),
    "not-a-number": ([1.0, float("nan"), 3.7, 8.0], None, "and must be a list of numbers above 0"),
    "beside-another-scaling": (
        [1.0, 1.0, 3.7, 8.0],
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0},
        "rope_freqs.weight means nothing to llama.rope.scaling.type 'linear'; remove it",
    ),
}


@pytest.mark.parametrize(("numbers", "metadata", "message"), WRONG_DIVISORS.values(), ids=WRONG_DIVISORS)
def test_gguf_with_wrong_divisors(
    numbers: list[float], metadata: dict[str, Any] | None, message: str, tmp_path: Path
) -> None:
    divisors = {"rope_freqs.weight": torch.tensor(numbers)}
    file = write_gguf(tmp_path / "model.gguf", CONFIG, TENSORS, extra=divisors, metadata=metadata)
    refused(file, message)


def test_gguf_with_longropes_divisors(tmp_path: Path) -> None:
    long = {f"rope_factors_{name}.weight": torch.ones(4) for name in ("long", "short")}
    refused(write_gguf(tmp_path / "model.gguf", CONFIG, TENSORS, extra=long), "holds longrope's divisors")


# --- messages, whatever stands in the file

FOREIGN: dict[str, tuple[dict[str, Any], dict[str, Tensor], str]] = {
    "string": ({"hidden_size": "x" * 10**7}, {}, "hidden_size is \"xxx"),
    "list": ({"rope_scaling": list(range(10**5))}, {}, "rope_scaling is [0, 1, 2, "),
    "object": ({"quantization_config": {"a" * 10**6: 1}}, {}, "take or make a copy of the checkpoint in bfloat16"),
    "number": ({"num_key_value_heads": 10**300}, {}, "num_key_value_heads"),
    "key": ({"k" * 10**7: 1}, {}, "is unknown and could change the maths; remove it if it does not"),
    "model_type": ({"model_type": "x" * 10**7}, {}, "is not supported; supported are bart"),
    "control-characters": ({"a\nb\x1b[31m\u2028": 1}, {}, "is unknown and could change the maths"),
    "name": ({}, {"m" * 10**6: torch.ones(2)}, "is unexpected, no rule takes it"),
    "name-with-newlines": ({}, {"a\nb\r\x00": torch.ones(2)}, "is unexpected, no rule takes it"),
}


@pytest.mark.parametrize(("config", "tensors", "message"), FOREIGN.values(), ids=FOREIGN)
def test_a_message_stays_one_short_line(
    config: dict[str, Any], tensors: dict[str, Tensor], message: str, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path, {**CONFIG, **config}, {**TENSORS, **tensors})
    with pytest.raises(MappingError) as error:
        load(folder)
    said = str(error.value)
    assert message in said
    assert said.startswith(f"{folder / ('config.json' if config else 'model.safetensors')}: ")
    assert len(said) <= 400
    assert said.isprintable()


def test_any_error_is_cut_in_its_middle_and_its_path_is_whole() -> None:
    where = "/a" * 150 + "/config.json"
    said = str(MappingError("first " + "x\n" * 10**5 + " last", where=where))
    assert said.startswith(f"{where}: first x")
    assert said.endswith(" last")
    assert said.isprintable()
    assert len(said) <= len(where) + 2 + 200
    assert len(str(MappingError("y" * 10**6))) == 400


# --- saving


def test_a_model_without_values_is_not_saved(tmp_path: Path) -> None:
    family, config = parse_config(CONFIG, "hf")
    with torch.device("meta"):
        model = family.model(config)
    with pytest.raises(MappingError, match=r"parameter 'embed.weight' is on the meta device"):
        save(model, tmp_path / "out")
