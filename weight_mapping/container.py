"""What every container of tensors has in common."""

import json
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, TypeAlias

import torch
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

    @abstractmethod
    def __contains__(self, name: object) -> bool: ...

    def _missing(self, name: str) -> MissingTensorError:
        return MissingTensorError(f"{self.file(name)}: tensor {name!r} is missing")


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
