"""The lists of a GGUF file, version 2 or 3: its metadata, and where its tensors lie. gguf's own reader makes an object of each
element, so that what a damaged or hostile count says is minutes and gigabytes; here the counts are bounded first.
"""

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from weight_mapping.errors import MappingError, named
from weight_mapping.json_file import Value

MOST_KEYS, MOST_ELEMENTS, MOST_TENSORS = 10_000, 1_500_000, 50_000
"""Of a file. Real ones have a hundred keys, and lists of a vocabulary's length."""

_SCALARS = dict(enumerate(("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?", "text", "list", "<u8", "<i8", "<f8")))
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class Placed(NamedTuple):
    """A tensor in the file: its type, its shape in torch's order, and its bytes."""

    type: GGMLQuantizationType
    shape: tuple[int, ...]
    start: int
    size: int


class Lists:
    """metadata: by key. tensors: by name. data: the whole file, memory-mapped. Raises ValueError where it is damaged."""

    def __init__(self, path: Path):
        if path.stat().st_size == 0:
            raise ValueError("it is empty")
        self.data = np.memmap(path, mode="r")
        self._view = np.asarray(self.data).data  # cheaper to cut pieces from
        self._at, self._elements = 0, 0
        if bytes(self._take(4)) != b"GGUF":
            raise ValueError("GGUF magic invalid")
        version = self._number(_U32)
        if not version & 0xFFFF:
            raise MappingError("is a GGUF of the other byte order; convert it to this machine's", where=path)
        if version not in (2, 3):
            raise ValueError(f"version {version} is not supported, 2 and 3 are")
        n_tensors, n_keys = self._number(_U64), self._number(_U64)
        if n_keys > MOST_KEYS or n_tensors > MOST_TENSORS:
            raise ValueError(f"it counts {n_keys:,} keys and {n_tensors:,} tensors, which no checkpoint has")
        self.metadata: dict[str, Value] = dict(_once("key", (self._pair() for _ in range(n_keys))))
        found = dict(_once("tensor", [self._tensor() for _ in range(n_tensors)]))
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
            raise ValueError("general.alignment is no power of two")
        begin = -(-self._at // alignment) * alignment
        self.tensors = {name: _placed(name, begin, len(self.data), *where) for name, where in found.items()}

    def _take(self, size: int) -> memoryview:
        at, self._at = self._at, self._at + size
        if self._at > len(self._view):
            raise ValueError("it ends too early")
        return self._view[at : self._at]

    def _number(self, kind: struct.Struct) -> int:
        return kind.unpack(self._take(kind.size))[0]

    def _text(self) -> str:
        return str(self._take(self._number(_U64)), "utf-8")

    def _kind(self) -> str:
        kind = self._number(_U32)
        if kind not in _SCALARS:
            raise ValueError(f"it has values of the unknown type {kind}")
        return _SCALARS[kind]

    def _pair(self) -> tuple[str, Value]:
        name, kind = self._text(), self._kind()
        if kind == "text":
            return name, self._text()
        if kind != "list":
            return name, self._scalars(kind, 1)[0]
        kind, count = self._kind(), self._number(_U64)
        self._elements += count
        if kind == "list":
            raise ValueError(f"its key {named(name)} is a list of lists, which no checkpoint needs")
        if self._elements > MOST_ELEMENTS and count <= len(self.data):  # else the list ends behind the file
            raise ValueError(f"its lists have more than {MOST_ELEMENTS:,} elements")
        if kind != "text":
            return name, self._scalars(kind, count)
        if count * _U64.size > len(self.data) - self._at:
            raise ValueError("it ends too early")
        return name, [self._text() for _ in range(count)]

    def _scalars(self, kind: str, count: int) -> list[Any]:
        dtype = np.dtype(kind)
        return np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist()

    def _tensor(self) -> tuple[str, tuple[tuple[int, ...], int, int]]:
        name, n_axes = self._text(), self._number(_U32)
        if n_axes > 8:
            raise ValueError(f"its tensor {named(name)} has {n_axes} axes")
        shape = tuple(self._number(_U64) for _ in range(n_axes))[::-1]
        return name, (shape, self._number(_U32), self._number(_U64))


def _once(what: str, pairs: Iterator[tuple[str, Any]] | list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    seen: set[str] = set()
    for name, value in pairs:
        if name in seen:
            raise ValueError(f"it has the {what} {named(name)} twice")
        seen.add(name)
        yield name, value


def _placed(name: str, begin: int, end: int, shape: tuple[int, ...], kind: int, offset: int) -> Placed:
    """Where a tensor lies in a file whose data begins and ends there."""
    if kind not in GGMLQuantizationType._value2member_map_:
        raise ValueError(f"its tensor {named(name)} has the unknown type {kind}")
    of = GGMLQuantizationType(kind)
    block, width = GGML_QUANT_SIZES[of]
    if shape and shape[-1] % block:
        raise ValueError(f"its tensor {named(name)} has rows of {shape[-1]}, and {of.name} has blocks of {block}")
    size = math.prod(shape) // block * width
    if begin + offset + size > end:
        raise ValueError("it ends too early")
    return Placed(of, shape, begin + offset, size)
