"""Files of other people: whatever they are and whatever is in them, each is read rightly or refused in one sentence, soon."""

import json
import os
import socket
import struct
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from torch import Tensor

from parity_tests.test_checkpoint_errors import INDEX, TENSORS, refused, write_bin
from parity_tests.tiny_checkpoints import (
    CONFIG,
    DEEPSEEK,
    same,
    tensors_of,
    write_config,
    write_folder,
    write_gguf,
    write_shards,
)
from weight_mapping import MappingError, load, open_checkpoint
from weight_mapping.gguf_reader import Lists


def refused_soon(path: Path, message: str) -> None:
    """In 2 s of this process, however busy the machine is."""
    start = time.process_time()
    refused(path, message)
    assert time.process_time() - start < 2


# --- what a path may be


def _socket(file: Path) -> None:
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(file.parent)  # its name must be short
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(file.name)
    finally:
        os.fchdir(here)
        os.close(here)


ODDITIES: dict[str, tuple[Callable[[Path], object], str]] = {
    "fifo": (os.mkfifo, "a FIFO"),
    "folder": (Path.mkdir, "a folder"),
    "dangling": (lambda file: file.symlink_to("nowhere"), "a link that leads nowhere"),
    "circle": (lambda file: file.symlink_to(file.name), "a link that leads nowhere"),
    "device": (lambda file: file.symlink_to("/dev/zero"), "a device"),
    "socket": (_socket, "a socket"),
}


@pytest.mark.parametrize(("make", "what"), ODDITIES.values(), ids=ODDITIES)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", INDEX, "model-00002-of-00003.safetensors", "x.gguf"])
def test_what_is_no_file(name: str, make: Callable[[Path], object], what: str, tmp_path: Path) -> None:
    (write_shards if "-of-" in name or name == INDEX else write_folder)(tmp_path, CONFIG, TENSORS)
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    if name == "x.gguf":
        if what != "a folder":
            refused_soon(tmp_path / name, f"x.gguf: is {what}; give a checkpoint")
    else:
        refused_soon(tmp_path, f"is {what}")
        refused_soon(tmp_path, name)


OTHERS = {
    "consolidated.00.pth": "consolidated.00.pth', Meta's own layout",
    "consolidated.safetensors": "Mistral's own layout",
    "model.pth": "a file of torch under another name",
    "pytorch_model.pt": "save the model's state_dict as safetensors",
    "epoch=3.ckpt": "a checkpoint of a trainer",
    "tf_model.h5": "TensorFlow's layout",
    "flax_model.msgpack": "Flax's layout",
    "model.onnx": "an ONNX graph",
    "model.nemo": "a NeMo archive",
    "mp_rank_00": "DeepSpeed or Megatron",
    "adapter_model.safetensors": "an adapter alone",
    "weights.safetensors": "holds 'weights.safetensors', and is read by model.safetensors or an index",
}


@pytest.mark.parametrize(("name", "message"), OTHERS.items(), ids=OTHERS)
def test_files_of_other_layouts(name: str, message: str, tmp_path: Path) -> None:
    write_config(tmp_path, CONFIG)
    (tmp_path / name).write_bytes(b"something")
    refused(tmp_path, message)
    refused(tmp_path / name, f"{tmp_path / name}: is ")


def test_a_file_for_its_folder(tmp_path: Path) -> None:
    whole, shards = write_folder(tmp_path / "one", CONFIG, TENSORS), write_shards(tmp_path / "many", CONFIG, TENSORS)
    for path in (whole / "model.safetensors", whole / "config.json", shards / INDEX, shards / "config.json"):
        assert same(dict(open_checkpoint(path)), TENSORS)
    refused(shards / "model-00001-of-00003.safetensors", f"{INDEX} is; give the folder {shards}")


def test_a_gguf_file_is_known_by_what_is_in_it(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", CONFIG, TENSORS)
    for name in ("X.GGUF", "sha256-0af"):
        load(file.rename(tmp_path / name))
        file = tmp_path / name
    (tmp_path / "second.gguf").write_bytes(file.read_bytes())
    refused(tmp_path, "holds GGUF files; give one of them: 'second.gguf', 'sha256-0af'")


def test_names_on_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused(Path("meta-llama/Llama-3.1-8B"), "nothing is downloaded: fetch it with `hf download`")
    cache = tmp_path / "models--org--name"
    write_folder(cache / "snapshots" / "0a1b", CONFIG, TENSORS)
    refused(cache, f"is a repository in the hub's cache; give what lies in it: {cache / 'snapshots' / '0a1b'}")


# --- JSON


TEXTS: dict[str, tuple[str | bytes, str]] = {
    "lists": ("[" * 100_000 + "]" * 100_000, "is nested deeper than any config is"),
    "objects": ('{"a":' * 100_000 + "1" + "}" * 100_000, "is nested deeper than any config is"),
    "digits": ('{"hidden_size": ' + "9" * 5000 + "}", "is not valid JSON"),
    "byte-order-mark": (b"\xef\xbb\xbf{}", "is not valid JSON"),
    "utf-16": ("{}".encode("utf-16"), "is not valid JSON"),
    "invalid": (b'{"a": "\xff"}', "is not valid JSON"),
    "surrogate": ('{"model_type": "\\ud800", "weight_map": {"\\ud800": "\\udfff"}}', "\\"),
    "twice": ('{"a": 1, "a": 2}', "has the key 'a' twice"),
    "values": ("[" + "[]," * 5_000_000 + "[]]", "lists more than 600,000 values"),
    "bytes": (b" " * (33 << 20), "has 34,603,008 bytes"),
    "text": ('{"model_type": "' + "x" * 10**7 + '"}', "…"),
}


@pytest.mark.parametrize(("text", "message"), TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("name", ["config.json", INDEX])
def test_json(name: str, text: str | bytes, message: str, tmp_path: Path) -> None:
    if name == "config.json":
        write_folder(tmp_path, CONFIG, TENSORS)
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    refused_soon(tmp_path, "has no 'weight_map'" if (name, message) == (INDEX, "…") else message)


@pytest.mark.parametrize("file", ["x" * 256, "é" * 128, "x\0", "a/b", "../x"])
def test_index_with_a_name_that_no_file_has(file: str, tmp_path: Path) -> None:
    write_config(tmp_path, CONFIG)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": file}}))
    refused_soon(tmp_path, "which is no name of a file in its folder")


SIZES: dict[str, tuple[dict[str, Any], str]] = {
    "experts": ({**DEEPSEEK, "n_routed_experts": 10**6}, "tensors, and there are only"),
    "layers": ({**CONFIG, "num_hidden_layers": 10**30}, "must be a whole number above 0, up to 100000"),
    "windows": ({**CONFIG, "model_type": "qwen2", "num_hidden_layers": 10**9}, "must be a whole number above 0"),
    "product": ({**CONFIG, "num_attention_heads": 2**30, "head_dim": 2**40}, "no tensor can be so large"),
    "digits": ({**CONFIG, "vocab_size": 10**400}, "must be a whole number above 0"),
    "dropout": ({**CONFIG, "attention_dropout": 1.5}, "must be a number from 0 to 1"),
    "float": ({**CONFIG, "hidden_size": 24.0}, "must be a whole number above 0"),
    "none": ({**CONFIG, "vocab_size": 0}, "must be a whole number above 0"),
}


@pytest.mark.parametrize(("config", "message"), SIZES.values(), ids=SIZES)
def test_absurd_sizes(config: Mapping[str, Any], message: str, tmp_path: Path) -> None:
    tensors = tensors_of(DEEPSEEK) if config["model_type"] == "deepseek_v3" else TENSORS
    refused_soon(write_folder(tmp_path, config, tensors), message)


# --- .bin


def _repacked(file: Path, change: Callable[[str, bytes], bytes] = lambda _, data: data, how: int = 0) -> None:
    with zipfile.ZipFile(file) as old:
        records = {name: change(name, old.read(name)) for name in old.namelist()}
    with zipfile.ZipFile(file, "w", how) as new:
        for name, data in records.items():
            new.writestr(name, data)


def test_a_bin_file_with_compressed_records(tmp_path: Path) -> None:
    file = write_bin(tmp_path, TENSORS)
    _repacked(file)
    assert same(dict(open_checkpoint(tmp_path)), TENSORS)  # wherever they lie
    _repacked(file, how=zipfile.ZIP_DEFLATED)
    refused_soon(tmp_path, "is compressed or encrypted, as torch.save leaves none")


KINDS: dict[str, tuple[Callable[[], Tensor], str]] = {
    "meta": (lambda: torch.empty(37, 24, device="meta"), "is on the meta device, so the file has no values of it"),
    "quantised": (lambda: torch.quantize_per_tensor(torch.ones(37, 24), 1, 0, torch.qint8), "is quantised"),
    "sparse": (lambda: torch.ones(37, 24).to_sparse(), "is sparse; save it dense"),
    "repeated": (lambda: torch.ones(1).expand(10**6, 10**6), "repeats what is stored; save a clone of it"),
    "complex": (lambda: torch.ones(37, 24, dtype=torch.complex64), "has no storage in the file that can be read"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("make", "message"), KINDS.values(), ids=KINDS)
def test_tensors_of_other_kinds(make: Callable[[], Tensor], message: str, tmp_path: Path) -> None:
    file = write_bin(tmp_path, {**TENSORS, "lm_head.weight": make()})
    refused_soon(tmp_path, f"{file}: tensor 'lm_head.weight' {message}")


@pytest.mark.parametrize("how", [{}, {"pickle_protocol": 4}, {"_use_new_zipfile_serialization": False}], ids=str)
def test_views_parameters_and_shared_storages(how: dict[str, Any], tmp_path: Path) -> None:
    both = torch.randn(48, 37)
    content = {"a": both.T[:, 3:], "b": both[7], "c": torch.nn.Parameter(both), "d": torch.ones(0, 3), "e": both.half()}
    write_config(tmp_path, CONFIG)
    torch.save(content, tmp_path / "pytorch_model.bin", **how)
    refused(tmp_path, "its tensors overlap, and are more than the file")
    del content["c"]
    torch.save(content, tmp_path / "pytorch_model.bin", **how)
    assert same(dict(open_checkpoint(tmp_path)), content)


def test_a_pickle_whose_key_takes_for_ever_to_hash(tmp_path: Path) -> None:
    file = write_bin(tmp_path, TENSORS)
    doubled = b"\x80\x02}()q\x00" + b"h\x00h\x00\x86q\x00" * 200 + b"K\x01u."
    _repacked(file, lambda name, data: doubled if name.endswith("data.pkl") else data)
    refused_soon(tmp_path, "it holds more than tensors by name")


# --- safetensors


def write_header(folder: Path, header: bytes, data: bytes = b"") -> Path:
    write_config(folder, CONFIG)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    return folder


def test_a_header_of_too_many_tensors(tmp_path: Path) -> None:
    one = '"t{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    many = "{" + ",".join(one.format(i) for i in range(250_000)) + "}"
    refused_soon(write_header(tmp_path, many.encode()), "lists more tensors than any checkpoint has")
    refused_soon(write_header(tmp_path, b"{" + b" " * 10**8 + b"}"), "lists more tensors than any checkpoint has")


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3", "F8_E8M0", "C64", "U64"])
def test_dtypes_that_no_model_has(dtype: str, tmp_path: Path) -> None:
    size = {"F4": 16, "F6_E2M3": 32, "F8_E8M0": 8, "C64": 1, "U64": 1}[dtype]
    n_bytes = 24 if dtype == "F6_E2M3" else 8
    header = {f"t{i}": {"dtype": dtype, "shape": [size], "data_offsets": [i * n_bytes, (i + 1) * n_bytes]} for i in range(9)}
    write_header(tmp_path, json.dumps(header).encode(), bytes(9 * n_bytes))
    refused_soon(tmp_path, f"has the unknown dtype {dtype}; store it as bfloat16 or float32")


def test_a_shape_that_no_tensor_can_have(tmp_path: Path) -> None:
    header = {f"t{i}": {"dtype": "F32", "shape": [2**63, 0], "data_offsets": [0, 0]} for i in range(9)}
    refused_soon(write_header(tmp_path, json.dumps(header).encode()), "has a shape that no tensor can have")


# --- GGUF


def write_lists(file: Path, body: bytes, n_keys: int = 0, n_tensors: int = 0) -> Path:
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_keys) + body)
    return file


def text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def test_gguf_with_absurd_lists(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    keys = b"".join(text(b"k%d" % i) + struct.pack("<II", 4, 1) for i in range(200_000))
    refused_soon(write_lists(file, keys, n_keys=200_000), "it counts 200,000 keys and 0 tensors, which no checkpoint has")
    refused_soon(write_lists(file, b"", n_tensors=10**6), "it counts 0 keys and 1,000,000 tensors")
    nested = text(b"k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 100_000
    refused_soon(write_lists(file, nested, 1), "its key 'k' is a list of lists, which no checkpoint needs")
    long = text(b"k") + struct.pack("<IIQ", 9, 0, 5 * 10**7) + bytes(5 * 10**7)
    refused_soon(write_lists(file, long, 1), "its lists have more than 1,500,000 elements")
    refused_soon(write_lists(file, text(b"k") * 2, 2), "not a complete GGUF file")


def test_gguf_metadata_is_what_gguf_reads(tmp_path: Path) -> None:
    said = {"llama.a": [1, 2], "llama.b": ["x", "é"], "llama.c": 0.5, "llama.d": [0.5, 2.0], "llama.e": "text"}
    file = write_gguf(tmp_path / "model.gguf", CONFIG, TENSORS, metadata=said)
    theirs = gguf.GGUFReader(file)
    ours = Lists(file)
    assert ours.metadata == {name: f.contents() for name, f in theirs.fields.items() if not name.startswith("GGUF.")}
    placed = {t.name: (t.tensor_type, tuple(t.shape.tolist())[::-1], t.data_offset, t.n_bytes) for t in theirs.tensors}
    assert {name: tuple(each) for name, each in ours.tensors.items()} == placed


def split(folder: Path) -> list[Path]:
    """A GGUF file in three parts, as llama.cpp splits one: all but the first say only which they are."""
    whole = write_gguf(folder / "whole.gguf", CONFIG, TENSORS)
    reader = gguf.GGUFReader(whole)
    parts = [folder / f"x-{i + 1:05}-of-00003.gguf" for i in range(3)]
    for i, part in enumerate(parts):
        writer = gguf.GGUFWriter(part, "llama")
        if i == 0:
            for name, field in reader.fields.items():
                if not name.startswith(("GGUF.", "general.architecture")):
                    kinds = (field.types[0], field.types[-1] if len(field.types) > 1 else None)
                    writer.add_key_value(name, field.contents(), kinds[0], kinds[1])
        writer.add_uint16("split.no", i)
        writer.add_uint16("split.count", 3)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[i::3]:
            writer.add_tensor(tensor.name, tensor.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return parts


def test_split_gguf(tmp_path: Path) -> None:
    parts = split(tmp_path)
    whole = dict(open_checkpoint(tmp_path / "whole.gguf"))
    for part in parts:
        assert same(dict(open_checkpoint(part)), whole)
        load(part)
    second = parts[1].read_bytes()
    parts[1].unlink()
    refused(parts[0], f"{parts[1]}: is missing, and 'x-00001-of-00003.gguf' is one of 3 parts; fetch it")
    parts[1].write_bytes(parts[2].read_bytes())
    refused(parts[0], f"{parts[1]}: is not part 2 of 3 of its set")
    count = second.index(b"split.tensors.count") + len("split.tensors.count") + 4
    parts[1].write_bytes(second[:count] + struct.pack("<i", 20) + second[count + 4 :])
    refused(parts[0], f"{parts[1]}: says that the 3 parts hold 20 tensors, and they hold 21")
    parts[1].write_bytes(second)
    (tmp_path / "y.gguf").write_bytes(second)
    refused(tmp_path / "y.gguf", "is one of 3 parts, and 'y.gguf' says otherwise")


def test_every_message_is_a_mapping_error(tmp_path: Path) -> None:
    for path in ("", "x" * 300, "a\0b", "~", "/", str(tmp_path)):
        with pytest.raises(MappingError):
            open_checkpoint(path)
