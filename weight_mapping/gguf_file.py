"""llama.cpp's container: metadata and, mostly quantised, tensors in one file, or in one that was split."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from weight_mapping.container import Checkpoint, Value, empty
from weight_mapping.errors import MappingError, named, shown
from weight_mapping.gguf_reader import Lists, Placed
from weight_mapping.json_file import oddity, require_file

MOST_PARTS = 1000


class GGUFFile(Checkpoint):
    """A GGUF file, memory-mapped. Every float type is given as float32 (float64 as it is), which holds the values of
    float16, bfloat16 and the quantised blocks exactly. Shapes are torch's; the file lists them in reverse.

    Of a file that was split, any part stands for the whole.
    """

    layout = "gguf"
    PLAIN: ClassVar = {
        GGMLQuantizationType.F64: torch.float64,
        GGMLQuantizationType.I64: torch.int64,
        GGMLQuantizationType.I32: torch.int32,
        GGMLQuantizationType.I16: torch.int16,
        GGMLQuantizationType.I8: torch.int8,
    }
    PART: ClassVar = re.compile(r"(.+-)(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE)

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """By its first bytes; by its name where they are damaged."""
        if oddity(path):
            return False
        try:
            with path.open("rb") as file:
                return file.read(4) == b"GGUF" or path.suffix.lower() == ".gguf"
        except OSError:
            return False

    def __init__(self, path: Path):
        super().__init__(path)
        first = _lists(path)
        count = first.metadata.get("split.count", 0)
        self._parts = {path: first} if count in (0, 1) else _whole(path, count)
        self._first, lists = next(iter(self._parts.items()))
        # how it was split is the container's own
        self._config = {key: value for key, value in lists.metadata.items() if not key.startswith("split.")}
        self._files: dict[str, Path] = {}
        for file, part in self._parts.items():
            for name in part.tensors:
                if self._files.setdefault(name, file) != file:
                    where = f"{self._files[name].name} too; fetch both again"
                    raise MappingError(f"tensor {named(name)} is in {where}", where=file)

    @property
    def config_file(self) -> Path:
        return self._first

    @property
    def config(self) -> Mapping[str, Value]:
        return self._config

    def file(self, name: str) -> Path:
        return self._files.get(name, self._first)

    def header(self, name: str) -> Tensor:
        tensor = self._find(name)
        return empty(tensor.shape, self.PLAIN.get(tensor.type, torch.float32), name, self.file(name))

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._find(name)
        data = self._parts[self._files[name]].data[tensor.start : tensor.start + tensor.size]
        if tensor.type in self.PLAIN:
            return torch.from_numpy(data.copy()).view(self.PLAIN[tensor.type]).reshape(tensor.shape)
        if 0 in tensor.shape:
            return torch.empty(tensor.shape)
        rows = tensor.shape[:-1] if tensor.shape else ()
        try:
            values = dequantize(np.asarray(data).reshape(*rows, -1), tensor.type)
        except NotImplementedError as error:
            why = f"is {tensor.type.name}, which gguf cannot dequantize; convert the file to another type"
            raise MappingError(f"tensor {named(name)} {why}", where=self.file(name)) from error
        # float32 comes as a view of the read-only map
        return torch.from_numpy(np.require(values, np.float32, "W")).reshape(tensor.shape)

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def _find(self, name: str) -> Placed:
        if name not in self._files:
            raise self._missing(name)
        return self._parts[self._files[name]].tensors[name]


def _lists(path: Path) -> Lists:
    require_file(path)
    try:
        return Lists(path)
    except MappingError:
        raise
    except (ValueError, OSError) as error:
        raise MappingError(f"not a complete GGUF file ({error}); fetch it again", where=path) from error


def _whole(path: Path, count: Value) -> dict[Path, Lists]:
    """The parts of a file that was split, in order, from any of them."""
    match = GGUFFile.PART.fullmatch(path.name)
    if match is None or type(count) is not int or int(match[3]) != count or not 1 < count <= MOST_PARTS:
        name = path.name if match is None else f"{match[1]}{match[2]}-of-{match[3]}{match[4]}"
        raise MappingError(
            f"is one of {shown(count)} parts, and {named(name)} says otherwise; give all parts their names back",
            where=path,
        )
    parts: dict[Path, Lists] = {}
    for i in range(count):
        part = path.with_name(f"{match[1]}{i + 1:05}-of-{count:05}{match[4]}")
        if oddity(part):
            raise MappingError(
                f"is {oddity(part)}, and {named(path.name)} is one of {count} parts; fetch it", where=part
            )
        parts[part] = lists = _lists(part)
        if (lists.metadata.get("split.no"), lists.metadata.get("split.count")) != (i, count):
            raise MappingError(f"is not part {i + 1} of {count} of its set; fetch it again", where=part)
    held = sum(len(lists.tensors) for lists in parts.values())
    for part, lists in parts.items():
        if (said := lists.metadata.get("split.tensors.count")) != held:
            why = f"says that the {count} parts hold {shown(said)} tensors, and they hold {held}"
            raise MappingError(f"{why}; fetch all from one place", where=part)
    return parts
