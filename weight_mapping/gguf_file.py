"""llama.cpp's container: one file with metadata and, mostly quantised, tensors."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor
from gguf.quants import dequantize
from torch import Tensor

from weight_mapping.container import Checkpoint, Value
from weight_mapping.errors import MappingError


class _Reader(GGUFReader):
    """gguf's reader, made to stop at the end of the file. By itself it goes on, and appends nothing to a list as often
    as a damaged count says."""

    def _get(self, offset: int, dtype: npt.DTypeLike, count: int = 1, *order: Any, **named: Any) -> npt.NDArray[Any]:
        if int(offset) + int(count) * np.dtype(dtype).itemsize > len(self.data):
            raise ValueError("it ends too early")
        return super()._get(offset, dtype, count, *order, **named)


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
            reader = _Reader(path)
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
            why = f"is {tensor.tensor_type.name}, which gguf cannot dequantize; convert the file to another type"
            raise MappingError(f"{self.path}: tensor {name!r} {why}") from error
        return torch.from_numpy(np.require(values, np.float32, "W"))  # float32 comes as a view of the read-only map

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def _find(self, name: str) -> ReaderTensor:
        if name not in self._tensors:
            raise self._missing(name)
        return self._tensors[name]
