"""The hub's container: a folder of a config.json and of safetensors files, or of the .bin files from before them."""

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from weight_mapping.container import Checkpoint, Value, read_json
from weight_mapping.errors import MappingError, MissingTensorError

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
            raise MappingError(f"{self.path}: tensor {name!r} has the unknown dtype {piece.get_dtype()}")
        return torch.empty(piece.get_shape(), dtype=_DTYPES[piece.get_dtype()], device="meta")

    def __getitem__(self, name: str) -> Tensor:
        return self._file.get_tensor(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.keys())

    def __len__(self) -> int:
        return len(self._names)


class _Bin(Mapping[str, Tensor]):
    """One .bin file that torch.save wrote, memory-mapped where its age allows it. Only tensors are taken out of it."""

    def __init__(self, path: Path):
        self.path = path
        try:
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
        except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError, KeyError, AttributeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise MappingError(
                f"{path}: not a complete file of tensors and nothing else ({reason}); fetch it again from a source you trust"
            ) from error
        if not isinstance(found, dict) or not all(isinstance(x, Tensor) and type(n) is str for n, x in found.items()):
            raise MappingError(f"{path}: holds more than tensors by name; save its state_dict alone")
        self._tensors: dict[str, Tensor] = found

    def header(self, name: str) -> Tensor:
        return torch.empty_like(self._tensors[name], device="meta")

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class HFFolder(Checkpoint):
    """A folder with config.json and, in model.safetensors or in the shards that its index names, the tensors.

    Where there are both, model.safetensors counts, as for transformers; then pytorch_model.bin, or its shards. A name may be
    a symbolic link, as all are in the hub's cache, but the index names nothing outside the folder.
    """

    layout = "hf"
    WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
    OLD_WEIGHTS, OLD_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
    LISTINGS = (WEIGHTS, INDEX, OLD_WEIGHTS, OLD_INDEX)

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return any((path / name).is_file() for name in cls.LISTINGS)

    def __init__(self, path: Path):
        super().__init__(path)
        self._opened: dict[str, _Safetensors | _Bin] = {}
        self._listing = next(name for name in self.LISTINGS if (path / name).is_file())
        if self._listing in (self.WEIGHTS, self.OLD_WEIGHTS):
            self._files = dict.fromkeys(self._shard(self._listing), self._listing)
        else:
            self._files = self._read_index()

    @property
    def config_file(self) -> Path:
        return self.path / self.CONFIG

    @property
    def config(self) -> Mapping[str, Value]:
        return read_json(self.config_file)

    def file(self, name: str) -> Path:
        return self.path / self._files.get(name, self._listing)

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

    def _holder(self, name: str) -> _Safetensors | _Bin:
        if name not in self._files:
            raise self._missing(name)
        return self._shard(self._files[name])

    def _shard(self, file: str) -> _Safetensors | _Bin:
        """A file, opened when it is first needed and held against what the index says of it."""
        if file not in self._opened:
            kind = _Bin if file.endswith(".bin") else _Safetensors
            self._opened[file] = shard = kind(self.path / file)
            if file != self._listing:
                self._check_shard(file, shard)
        return self._opened[file]

    def _check_shard(self, file: str, shard: _Safetensors | _Bin) -> None:
        for name, holder in self._files.items():
            if holder == file and name not in shard:
                why = f"is missing, and {self._listing} puts it here"
                raise MissingTensorError(f"{shard.path}: tensor {name!r} {why}; fetch both again")
        for name in shard:
            if self._files.get(name) != file:
                why = f"is unexpected, {self._listing} does not put it here"
                raise MappingError(f"{shard.path}: tensor {name!r} {why}; fetch both again")

    def _read_index(self) -> dict[str, str]:
        index = self.path / self._listing
        files = read_json(index).get("weight_map")
        if not isinstance(files, dict):
            raise MappingError(f"{index}: has no 'weight_map' from tensors to files; fetch it again")
        out: dict[str, str] = {}
        for name, file in files.items():
            if not isinstance(file, str) or not file or file in (".", "..") or set(file) & set("/\\\0"):
                why = f"in {file!r}, which is no name of a file in its folder; fetch it again from a source you trust"
                raise MappingError(f"{index}: puts tensor {name!r} {why}")
            out[name] = file
        for file in dict.fromkeys(out.values()):
            if not (self.path / file).is_file():
                raise MappingError(f"{index}: names the shard {file!r}, which is missing; fetch it")
        return out
