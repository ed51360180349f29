"""JSON files of other people: read whole or refused, in time and memory that their size bounds."""

import json
import os
import stat
from pathlib import Path
from typing import TypeAlias

from weight_mapping.errors import MappingError, named

Value: TypeAlias = str | int | float | bool | list["Value"] | dict[str, "Value"] | None
"""What JSON or GGUF metadata holds."""

MOST_BYTES, MOST_VALUES = 32 * 2**20, 600_000
"""Of a JSON text. The longest real ones list 140,000 tensors; each value becomes an object of up to 100 bytes."""

_KINDS = {
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a FIFO",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}


def oddity(path: Path) -> str | None:
    """What `path` is instead of a file that can be read, or None when it is one. Opens nothing: a FIFO would wait."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        if os.path.islink(path):
            return "a link that leads nowhere"
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return "missing" if isinstance(error, FileNotFoundError | NotADirectoryError) else f"not to be read ({why})"
    if stat.S_ISREG(mode):
        return None
    return next((says for holds, says in _KINDS.items() if holds(mode)), "no file")


def require_file(path: Path) -> None:
    """Raise MappingError unless `path` is a file."""
    if what := oddity(path):
        raise MappingError(
            f"is {what}{'' if what == 'missing' else ', not a file'}; put the checkpoint's own there", where=path
        )


def read_json(path: Path) -> dict[str, Value]:
    """The object in a JSON file. Raises MappingError when there is none, or when it has a key twice."""
    require_file(path)
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= MOST_BYTES else b""
    except OSError as error:
        raise MappingError(f"cannot be read ({error.strerror}); see who may read it", where=path) from error
    if size > MOST_BYTES:
        raise MappingError(f"has {size:,} bytes, and no such file needs them; fetch it again", where=path)
    return parse_json(data, path)


def parse_json(data: bytes, path: Path) -> dict[str, Value]:
    """The same for the bytes of a JSON text in the file at `path`."""

    def once(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
        found = dict(pairs)
        if len(found) < len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))
            raise MappingError(f"has the key {named(twice)} twice; keep one", where=path)
        return found

    if sum(map(data.count, b",[{")) > MOST_VALUES:
        raise MappingError(
            f"lists more than {MOST_VALUES:,} values, and no checkpoint has them; fetch it again", where=path
        )
    try:
        content = json.loads(data.decode("utf-8"), object_pairs_hook=once)
    except RecursionError as error:
        raise MappingError("is nested deeper than any config is; fetch it again", where=path) from error
    except MappingError:
        raise
    except ValueError as error:  # no JSON, no UTF-8, or a number of more digits than Python reads
        raise MappingError(f"is not valid JSON ({error}); fetch it again", where=path) from error
    if not isinstance(content, dict):
        raise MappingError("holds no JSON object; fetch it again", where=path)
    return content
