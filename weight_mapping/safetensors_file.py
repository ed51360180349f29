"""One .safetensors file as a mapping from names to tensors."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from weight_mapping.container import empty
from weight_mapping.errors import MappingError, named
from weight_mapping.json_file import MOST_BYTES, require_file

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

MOST_TENSORS = 50_000
"""Of one file. Seven or more of the characters that begin something in JSON list one."""


class SafetensorsFile(Mapping[str, Tensor]):
    """One .safetensors file, memory-mapped."""

    def __init__(self, path: Path):
        self.path = path
        require_file(path)
        try:
            self._check_size_of_header()
            self._file = safe_open(path, framework="pt")
        except (SafetensorError, RuntimeError, OSError) as error:  # RuntimeError: torch cannot map it
            raise MappingError(f"not a complete safetensors file ({error}); fetch it again", where=path) from error
        self._names = frozenset(self._file.keys())

    def _check_size_of_header(self) -> None:
        """Before it is parsed, for what it is parsed into is several times its size."""
        with self.path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = file.read(min(size, MOST_BYTES + 1))
        if len(header) > MOST_BYTES or sum(map(header.count, b",[{")) > 8 * MOST_TENSORS:
            raise MappingError("lists more tensors than any checkpoint has; fetch it again", where=self.path)

    def header(self, name: str) -> Tensor:
        piece = self._file.get_slice(name)
        if piece.get_dtype() not in _DTYPES:
            raise MappingError(
                f"tensor {named(name)} has the unknown dtype {piece.get_dtype()}; store it as bfloat16 or float32",
                where=self.path,
            )
        return empty(piece.get_shape(), _DTYPES[piece.get_dtype()], name, self.path)

    def __getitem__(self, name: str) -> Tensor:
        return self._file.get_tensor(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.keys())

    def __len__(self) -> int:
        return len(self._names)
