"""The errors of this package: MappingError, and two kinds of it. Whatever stands in them, they stay one short line."""

import json
from pathlib import Path

LIMIT = 400
"""How many characters a message has at most, unless the path in it takes them up."""
_LEAST = 200
"""What is left for the rest beside a long path, which stays whole."""


def cut(text: str, limit: int) -> str:
    """`text` on one line of at most `limit` characters: what is longer loses its middle, control characters are escaped."""
    kept = text if len(text) <= 2 * limit else text[:limit] + text[-limit:]
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in kept)
    if len(text) <= limit and len(escaped) <= limit:
        return escaped
    end = limit // 3
    return f"{escaped[: limit - end - 3]} … {escaped[-end:]}"


def shown(value: object, limit: int = 80) -> str:
    """A value of somebody's config, as JSON."""
    return cut(json.dumps(value), limit)


def named(name: object, limit: int = 100) -> str:
    """A name out of somebody's file, in quotes."""
    return repr(name) if not isinstance(name, str) else cut(repr(cut(name, limit)), limit)


class MappingError(ValueError):
    """A checkpoint, config or table that cannot be mapped. One sentence: the file, tensor or key, and what to do.

    where: the file that it is about, which stands before the message and is never cut.
    """

    def __init__(self, message: object, *, where: str | Path | None = None):
        place = "" if where is None else f"{where}: "
        super().__init__(place + cut(str(message), max(LIMIT - len(place), _LEAST)))


class MissingTensorError(MappingError, KeyError):
    """A name that a checkpoint does not hold; a KeyError too, as `Mapping` asks."""

    __str__ = Exception.__str__  # a KeyError would print its message in quotes


class TensorError(MappingError):
    """A tensor that a plan cannot take. It is known by name; whoever knows its file adds that."""

    def __init__(self, tensor: str, what: str):
        super().__init__(what)
        self.tensor = tensor
