"""One .bin file that torch.save wrote, of either age, as a mapping from names to tensors. Nothing in it is run."""

import math
import sys
from collections.abc import Iterator, Mapping
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weight_mapping.container import empty
from weight_mapping.errors import MappingError, named
from weight_mapping.json_file import require_file
from weight_mapping.pickled import Made, Name, Stored, described
from weight_mapping.zip_records import Record, records

_OLD = b"l\xfc\x9cF\xf9 j\xa8P\x19."  # the number that begins a file from before torch 1.6
_STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "UntypedStorage": torch.uint8,  # the tensor has the dtype
}
_DTYPES = {
    str(dtype): dtype for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64)
}
"""Of tensors that have no storage of their own kind."""
_STRIDED = {"_rebuild_tensor": 4, "_rebuild_tensor_v2": 6, "_rebuild_tensor_v3": 7}
"""What makes a plain tensor, and of how many arguments at least: storage, offset, shape, stride, …"""
_OTHERS = {
    "_rebuild_qtensor": "is quantised; dequantize it",
    "_rebuild_sparse_tensor": "is sparse; save it dense",
    "_rebuild_sparse_csr_tensor": "is sparse; save it dense",
    "_rebuild_nested_tensor": "is nested; save its parts",
    "_rebuild_meta_tensor_no_storage": "is on the meta device, so the file has no values of it; save the model that has",
}


class _Placed(NamedTuple):
    """A tensor: where its storage begins in the file, and how it lies in there."""

    start: int
    n_bytes: int
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class BinFile(Mapping[str, Tensor]):
    """One .bin file, memory-mapped: a tensor is read when it is asked for."""

    def __init__(self, path: Path):
        self.path = path
        require_file(path)
        try:
            with path.open("rb") as file:
                self._bytes = mmap(file.fileno(), 0, access=ACCESS_COPY)
            found, storages = (_old if _OLD in self._bytes[:32] else _zipped)(self._bytes)
        except (ValueError, OSError, RecursionError) as error:
            raise MappingError(
                f"not a complete file of tensors and nothing else ({error}); fetch it again from a source you trust",
                where=path,
            ) from error
        if not isinstance(found, dict) or not all(isinstance(x, Made) and type(n) is str for n, x in found.items()):
            raise MappingError("holds more than tensors by name; save its state_dict alone", where=path)
        self._tensors = {name: self._place(name, made, storages) for name, made in found.items()}
        if sum(math.prod(t.shape) * t.dtype.itemsize for t in set(self._tensors.values())) > len(self._bytes):
            raise MappingError("its tensors overlap, and are more than the file; save a clone of each", where=path)

    def header(self, name: str) -> Tensor:
        return empty(self._tensors[name].shape, self._tensors[name].dtype, name, self.path)

    def __getitem__(self, name: str) -> Tensor:
        t = self._tensors[name]
        if 0 in t.shape:
            return torch.empty(t.shape, dtype=t.dtype)
        count = t.n_bytes // t.dtype.itemsize
        storage = torch.frombuffer(self._bytes, dtype=t.dtype, count=count, offset=t.start)
        return storage.as_strided(t.shape, t.stride, t.offset)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def _place(self, name: str, made: Made, storages: Mapping[str, Record]) -> _Placed:
        """Where a tensor lies, once everything said of it holds."""
        what = f"tensor {named(name)}"
        while made.by == "_rebuild_parameter" and made.arguments and isinstance(made.arguments[0], Made):
            made = made.arguments[0]
        if made.by not in _STRIDED:
            raise MappingError(
                f"{what} {_OTHERS.get(made.by, f'is of a special kind ({made.by}); save it as a plain one')}",
                where=self.path,
            )
        try:
            stored, offset, shape, stride = made.arguments[:4]
            _, kind, key, _, n = stored.key[:5]
            dtype = _STORAGES[kind.name.rpartition(".")[2]]
            more = made.arguments[_STRIDED[made.by] :]
            if made.by == "_rebuild_tensor_v3":
                dtype = _DTYPES[made.arguments[6].name]
            record = storages[key]
        except (ValueError, AttributeError, KeyError, IndexError, TypeError) as error:
            raise MappingError(
                f"{what} has no storage in the file that can be read; fetch it again", where=self.path
            ) from error
        if any(more):
            raise MappingError(
                f"{what} is the conjugate or negative of what is stored; save a clone of it", where=self.path
            )
        whole = (n, offset, *shape, *stride) if isinstance(shape, tuple) and isinstance(stride, tuple) else (None,)
        if not all(type(each) is int and 0 <= each < 1 << 62 for each in whole) or len(shape) != len(stride):
            raise MappingError(f"{what} has no shape that can be read; fetch it again", where=self.path)
        held = record.size // dtype.itemsize
        last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        if 0 not in shape and last >= held:
            raise MappingError(f"{what} ends behind its storage; fetch it again", where=self.path)
        if math.prod(shape) > held:
            raise MappingError(f"{what} repeats what is stored; save a clone of it", where=self.path)
        return _Placed(record.start, record.size, dtype, offset, shape, stride)


def _zipped(file: mmap) -> tuple[Any, dict[str, Record]]:
    """What the file describes, and where its storages are."""
    held = records(file)
    root = next((name.removesuffix("data.pkl") for name in held if name.endswith("/data.pkl")), None)
    if root is None:
        raise ValueError("it has no data.pkl")
    if f"{root}constants.pkl" in held:
        raise ValueError("it is a TorchScript program")
    order = held.get(f"{root}byteorder")
    if order and file[order.start : order.start + min(order.size, 9)] != sys.byteorder.encode():
        raise ValueError("it is of the other byte order")
    start, _ = held[f"{root}data.pkl"]
    file.seek(start)
    data = f"{root}data/"
    storages = {name.removeprefix(data): record for name, record in held.items() if name.startswith(data)}
    return described(file), storages


def _old(file: mmap) -> tuple[Any, dict[str, Record]]:
    """The same before torch 1.6: pickles one behind the other, and then the storages in the order of the last."""
    _, version, system, found, keys = (described(file) for _ in range(5))
    if version != 1001 or not isinstance(system, dict) or not isinstance(keys, list):
        raise ValueError("it begins like a file of torch.save, and does not go on like one")
    if system.get("little_endian") is not (sys.byteorder == "little"):
        raise ValueError("it is of the other byte order")
    widths = _widths(found)
    storages: dict[str, Record] = {}
    at = file.tell()
    for key in keys:
        if not isinstance(key, str) or key not in widths:
            raise ValueError("it lists a storage that no tensor has")
        size = int.from_bytes(file[at : at + 8], "little") * widths[key]
        if at + 8 + size > len(file):
            raise ValueError("it ends too early")
        storages[key] = Record(at + 8, size)
        at += 8 + size
    return found, storages


def _widths(found: Any) -> dict[str, int]:
    """How many bytes an element of each storage has."""
    widths: dict[str, int] = {}
    for made in found.values() if isinstance(found, dict) else []:
        while isinstance(made, Made) and made.arguments:
            made = made.arguments[0]
        if isinstance(made, Stored) and len(made.key) >= 5 and isinstance(made.key[1], Name):
            dtype = _STORAGES.get(made.key[1].name.rpartition(".")[2])
            if len(made.key) > 5 and made.key[5] is not None:
                raise ValueError("a storage of it is part of another")
            if dtype and isinstance(made.key[2], str):
                widths[made.key[2]] = dtype.itemsize
    return widths
