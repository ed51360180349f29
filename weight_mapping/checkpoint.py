"""Checkpoints as read-only mappings from names to tensors, whatever container they lie in. Nothing is unpickled.

One more container is one more class in `CONTAINERS`.
"""

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import ClassVar, TypeAlias

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor
from gguf.quants import dequantize
from safetensors import SafetensorError, safe_open
from torch import Tensor

from weight_mapping.errors import MappingError, MissingTensorError

Value: TypeAlias = str | int | float | bool | list["Value"] | dict[str, "Value"] | None
"""What JSON or GGUF metadata holds."""


class Checkpoint(Mapping[str, Tensor]):
    """Names to tensors of one checkpoint. A tensor's data is read when it is asked for, and anew each time.

    Raises MappingError, naming the file, where the container turns out truncated, corrupt or incomplete.
    """

    layout: ClassVar[str]
    """Which naming and orientation the container goes with: a key of `Family.layouts`."""

    def __init__(self, path: Path):
        self.path = path

    @classmethod
    @abstractmethod
    def recognises(cls, path: Path) -> bool:
        """Whether `path` looks like this container."""

    @property
    @abstractmethod
    def config(self) -> Mapping[str, Value]:
        """What the checkpoint says of its model: config.json, or GGUF metadata."""

    @property
    @abstractmethod
    def config_file(self) -> Path:
        """The file that `config` stands in."""

    @abstractmethod
    def file(self, name: str) -> Path:
        """The file that a tensor lies in; for a name that there is not, the file that lists the names."""

    @abstractmethod
    def header(self, name: str) -> Tensor:
        """A tensor's shape and dtype, as an empty tensor on the meta device: its data is not read."""

    def shape(self, name: str) -> torch.Size:
        """A tensor's shape; its data is not read."""
        return self.header(name).shape

    def dtype(self, name: str) -> torch.dtype:
        """The dtype in which a tensor is given; its data is not read."""
        return self.header(name).dtype

    def __contains__(self, name: object) -> bool:
        return name in set(self)

    def _missing(self, name: str) -> MissingTensorError:
        return MissingTensorError(f"{self.file(name)}: tensor {name!r} is missing", tensor=name)


_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class _Safetensors(Mapping[str, Tensor]):
    """One .safetensors file, memory-mapped."""

    def __init__(self, path: Path):
        self.path = path
        try:
            self._file = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise MappingError(f"{path}: not a complete safetensors file ({error}); fetch it again") from error
        self._names = frozenset(self._file.keys())

    def header(self, name: str) -> Tensor:
        piece = self._file.get_slice(name)
        if piece.get_dtype() not in _DTYPES:
            raise MappingError(f"{self.path}: tensor {name!r} has the unknown dtype {piece.get_dtype()}", tensor=name)
        return torch.empty(piece.get_shape(), dtype=_DTYPES[piece.get_dtype()], device="meta")

    def __getitem__(self, name: str) -> Tensor:
        return self._file.get_tensor(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.keys())

    def __len__(self) -> int:
        return len(self._names)


class HFFolder(Checkpoint):
    """A folder with config.json and, in model.safetensors or in the shards that its index names, the tensors.

    Where there are both, model.safetensors counts, as for transformers. A name may be a symbolic link, as all are
    in the hub's cache, but the index names nothing outside the folder.
    """

    layout = "hf"
    WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return (path / cls.WEIGHTS).is_file() or (path / cls.INDEX).is_file()

    def __init__(self, path: Path):
        super().__init__(path)
        self._opened: dict[str, _Safetensors] = {}
        if (path / self.WEIGHTS).is_file():
            self._files = dict.fromkeys(self._shard(self.WEIGHTS), self.WEIGHTS)
        else:
            self._files = self._read_index()

    @property
    def config_file(self) -> Path:
        return self.path / self.CONFIG

    @cached_property
    def config(self) -> Mapping[str, Value]:
        return read_json(self.config_file)

    def file(self, name: str) -> Path:
        listing = self.WEIGHTS if (self.path / self.WEIGHTS).is_file() else self.INDEX
        return self.path / self._files.get(name, listing)

    def header(self, name: str) -> Tensor:
        return self._holder(name).header(name)

    def __getitem__(self, name: str) -> Tensor:
        return self._holder(name)[name]

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def _holder(self, name: str) -> _Safetensors:
        if name not in self._files:
            raise self._missing(name)
        return self._shard(self._files[name])

    def _shard(self, file: str) -> _Safetensors:
        """A file, opened when it is first needed and held against what the index says of it."""
        if file not in self._opened:
            self._opened[file] = shard = _Safetensors(self.path / file)
            if file != self.WEIGHTS:
                self._check_shard(file, shard)
        return self._opened[file]

    def _check_shard(self, file: str, shard: _Safetensors) -> None:
        for name, holder in self._files.items():
            if holder == file and name not in shard:
                why = f"is missing, and {self.INDEX} puts it here"
                raise MissingTensorError(f"{shard.path}: tensor {name!r} {why}; fetch both again", tensor=name)
        for name in shard:
            if self._files.get(name) != file:
                why = f"is unexpected, {self.INDEX} does not put it here"
                raise MappingError(f"{shard.path}: tensor {name!r} {why}; fetch both again", tensor=name)

    def _read_index(self) -> dict[str, str]:
        index = self.path / self.INDEX
        files = read_json(index).get("weight_map")
        if not isinstance(files, dict):
            raise MappingError(f"{index}: has no 'weight_map' from tensors to files; fetch it again")
        out: dict[str, str] = {}
        for name, file in files.items():
            if not isinstance(file, str) or not file or file in (".", "..") or set(file) & set("/\\\0"):
                why = f"in {file!r}, which is no name of a file in its folder; fetch it again from a source you trust"
                raise MappingError(f"{index}: puts tensor {name!r} {why}", tensor=name)
            out[name] = file
        for file in dict.fromkeys(out.values()):
            if not (self.path / file).is_file():
                raise MappingError(f"{index}: names the shard {file!r}, which is missing; fetch it")
        return out


class GGUFFile(Checkpoint):
    """A GGUF file, memory-mapped. Every float type is given as float32 (float64 as it is), which holds the values of
    float16, bfloat16 and the quantised blocks exactly. Shapes are torch's; the file lists them in reverse.
    """

    layout = "gguf"
    PLAIN: ClassVar = {
        GGMLQuantizationType.F64: torch.float64,
        GGMLQuantizationType.I64: torch.int64,
        GGMLQuantizationType.I32: torch.int32,
        GGMLQuantizationType.I16: torch.int16,
        GGMLQuantizationType.I8: torch.int8,
    }

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return path.suffix == ".gguf" and path.is_file()

    def __init__(self, path: Path):
        super().__init__(path)
        try:
            reader = GGUFReader(path)
            metadata = {name: f.contents() for name, f in reader.fields.items() if not name.startswith("GGUF.")}
        except (ValueError, LookupError, OverflowError, MemoryError, OSError) as error:
            raise MappingError(f"{path}: not a complete GGUF file ({error}); fetch it again") from error
        if reader.byte_order != "I":
            raise MappingError(f"{path}: is a GGUF of the other byte order; convert it to this machine's")
        self._config = metadata
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}

    @property
    def config_file(self) -> Path:
        return self.path

    @property
    def config(self) -> Mapping[str, Value]:
        return self._config

    def file(self, name: str) -> Path:
        return self.path

    def header(self, name: str) -> Tensor:
        tensor = self._find(name)
        shape = [int(n) for n in reversed(tensor.shape)]
        return torch.empty(shape, dtype=self.PLAIN.get(tensor.tensor_type, torch.float32), device="meta")

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._find(name)
        if tensor.tensor_type in self.PLAIN:
            return torch.from_numpy(tensor.data.copy())
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            why = f"is {tensor.tensor_type.name}, which the gguf package cannot dequantize; convert the file to another type"
            raise MappingError(f"{self.path}: tensor {name!r} {why}", tensor=name) from error
        return torch.from_numpy(np.array(values, dtype=np.float32))  # a copy: the file is mapped read-only

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def _find(self, name: str) -> ReaderTensor:
        if name not in self._tensors:
            raise self._missing(name)
        return self._tensors[name]


CONTAINERS: tuple[type[Checkpoint], ...] = (HFFolder, GGUFFile)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open the checkpoint at `path`: an HF folder or a GGUF file. Only lists of names are read.

    Raises MappingError when it is neither, or is incomplete.
    """
    path = Path(path)
    for container in CONTAINERS:
        if container.recognises(path):
            return container(path)
    if not path.exists():
        raise MappingError(f"{path}: does not exist; give a checkpoint on this machine")
    raise MappingError(f"{path}: is neither a folder with {HFFolder.WEIGHTS} or {HFFolder.INDEX} nor a .gguf file")


def read_json(path: Path) -> dict[str, Value]:
    """The object in a JSON file. Raises MappingError when there is none, or when it has a key twice."""

    def once(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
            raise MappingError(f"{path}: has the key {twice!r} twice; keep one")
        return found

    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=once)
    except FileNotFoundError as error:
        raise MappingError(f"{path}: is missing; put the checkpoint's own there") from error
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise MappingError(f"{path}: is not valid JSON ({error}); fetch it again") from error
    if not isinstance(content, dict):
        raise MappingError(f"{path}: holds no JSON object; fetch it again")
    return content
