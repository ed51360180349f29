"""Where the records of a zip file lie that nothing has compressed, as torch.save writes it."""

import struct
from collections.abc import Iterator
from mmap import mmap
from typing import NamedTuple

MOST_RECORDS = 100_000

_END, _END64, _LOCATOR64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
_ENTRY, _LOCAL = struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s5H3L2H")
_FULL = 0xFFFFFFFF


class Record(NamedTuple):
    """Where a record's bytes are in the file."""

    start: int
    size: int


def records(file: mmap) -> dict[str, Record]:
    """The records of the zip file by name. Raises ValueError where it is damaged, or a record is compressed or encrypted."""
    try:
        return dict(_records(file))
    except struct.error as error:  # a structure that would begin before the file or end behind it
        raise ValueError("its list of records is damaged") from error


def _directory(file: mmap) -> tuple[int, int]:
    """How many entries the list of records has, and where it begins."""
    end = file.rfind(b"PK\5\6", max(0, len(file) - _END.size - 0xFFFF))
    if end < 0:
        raise ValueError("it ends too early")
    count, start = (_END.unpack_from(file, end)[i] for i in (4, 6))
    locator = end - _LOCATOR64.size
    if locator >= 0 and file[locator : locator + 4] == b"PK\6\7":
        where = _LOCATOR64.unpack_from(file, locator)[2]
        if where > len(file) or file[where : where + 4] != b"PK\6\6":
            raise ValueError("its list of records is damaged")
        count, start = (_END64.unpack_from(file, where)[i] for i in (7, 9))
    if count > MOST_RECORDS:
        raise ValueError(f"it has more than {MOST_RECORDS:,} records")
    return count, start


def _records(file: mmap) -> Iterator[tuple[str, Record]]:
    count, at = _directory(file)
    for _ in range(count):
        if at + _ENTRY.size > len(file):
            raise ValueError("its list of records is damaged")
        signature, _, _, flags, method, *_, packed, size, n, extra, comment, _, _, _, local = _ENTRY.unpack_from(
            file, at
        )
        if signature != b"PK\1\2":
            raise ValueError("its list of records is damaged")
        text = file[at + _ENTRY.size : at + _ENTRY.size + n].decode("utf-8")
        if method or flags & 1:
            raise ValueError(f"its record {text!r} is compressed or encrypted, as torch.save leaves none")
        more = file[at + _ENTRY.size + n : at + _ENTRY.size + n + extra]
        size, packed, local = _long(more, (size, packed, local))
        if packed != size or local + _LOCAL.size > len(file):
            raise ValueError("its list of records is damaged")
        signature, *_, its_name, its_extra = _LOCAL.unpack_from(file, local)
        start = local + _LOCAL.size + its_name + its_extra
        if signature != b"PK\3\4" or start + size > len(file):
            raise ValueError(f"its record {text!r} ends behind the file")
        yield text, Record(start, size)
        at += _ENTRY.size + n + extra + comment


def _long(extra: bytes, values: tuple[int, ...]) -> tuple[int, ...]:
    """The values, those that do not fit into 32 bits out of the entry's extra field."""
    if _FULL not in values:
        return values
    while len(extra) >= 4:
        kind, size = struct.unpack_from("<2H", extra)
        if kind == 1:
            longer = iter(struct.unpack_from(f"<{values.count(_FULL)}Q", extra, 4))
            return tuple(next(longer) if value == _FULL else value for value in values)
        extra = extra[4 + size :]
    return values
