"""What every container of tensors has in common."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from weight_mapping.errors import MappingError, MissingTensorError, named
from weight_mapping.json_file import Value, read_json

__all__ = ["Checkpoint", "Value", "empty", "read_json"]


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
        return MissingTensorError(f"tensor {named(name)} is missing", where=self.file(name))


def empty(shape: Sequence[int], dtype: torch.dtype, name: str, where: Path) -> Tensor:
    """An empty tensor on the meta device. name, where: which has the shape, for the error when no tensor can."""
    try:
        return torch.empty(tuple(shape), dtype=dtype, device="meta")
    except (RuntimeError, OverflowError, TypeError) as error:  # which of them depends on where the sizes overflow
        raise MappingError(
            f"tensor {named(name)} has a shape that no tensor can have; fetch it again", where=where
        ) from error
