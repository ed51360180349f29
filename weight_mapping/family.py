"""What this package knows of a family of models, as data: its config's keys and its tensors' names in each layout."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, replace
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from torch import nn

from weight_mapping.container import Checkpoint, Value
from weight_mapping.rules import Alias, Table

Fields: TypeAlias = dict[str, Any]
"""A config under the reference's names, each value of the kind of its key. RoPE's parts are `rope.theta`, `rope.type`,
`rope.pairing` and `rope.<field of the scaling>`."""

Default: TypeAlias = Value | Callable[[Any], Value]
"""What a field is when the config does not say: a value, or a function of the fields known so far (of mixed types)."""


class ReferenceConfig(Protocol):
    """A config of the reference: any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


C = TypeVar("C", bound=ReferenceConfig)


@dataclass(frozen=True)
class Kind:
    """What the value of a key may be; `read` gives None for what it may not, and `write` is its inverse."""

    says: str
    read: Callable[[Value], Any]
    write: Callable[[Any], Value] = lambda value: value
    absent: tuple[Value, ...] = (None,)
    """Values that are like no key."""
    null: bool = False
    """Whether null is a value beside those of `read`."""


def _number(value: Value, least: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if least <= value <= sys.float_info.max else None


def _numbers(value: Value) -> tuple[float, ...] | None:
    numbers = [_number(each, sys.float_info.min) for each in value] if isinstance(value, list) else []
    found = tuple(number for number in numbers if number is not None)
    return found if found and len(found) == len(numbers) else None


MOST = 2**53
"""The largest size that every reader of JSON has exactly."""
MOST_LAYERS = 100_000
"""More than any file has, and few enough to say something of each."""

COUNT = Kind(f"a whole number above 0, up to {MOST}", lambda v: v if type(v) is int and 0 < v <= MOST else None)
COUNT_OR_NULL = replace(COUNT, says=f"{COUNT.says}, or null", absent=(), null=True)
LAYERS = Kind(f"a whole number above 0, up to {MOST_LAYERS}", lambda v: v if type(v) is int and 0 < v <= MOST_LAYERS else None)
WHOLE = Kind(f"a whole number of 0 or more, up to {MOST}", lambda v: v if type(v) is int and 0 <= v <= MOST else None)
WHOLE_OR_NULL = replace(WHOLE, says=f"{WHOLE.says}, or null", absent=(), null=True)
POSITIVE = Kind("a number above 0", lambda v: _number(v, sys.float_info.min))
AMOUNT = Kind("a number of 0 or more", lambda v: _number(v, 0))
PROBABILITY = Kind("a number from 0 to 1", lambda v: None if (p := _number(v, 0)) is None or p > 1 else p)
FLAG = Kind("true or false", lambda v: v if type(v) is bool else None)
TEXT = Kind("a string", lambda v: v if type(v) is str else None)
NUMBERS = Kind("a list of numbers above 0", _numbers, list)  # a tuple in the config, which is frozen


def given(kind: Kind) -> Kind:
    """The same where null is no value, and not like no key either: readers have taken it for something else."""
    return replace(kind, absent=())


@dataclass(frozen=True)
class Key:
    """A key of a config and the field it gives. Keys that give one field must agree; the first of them is written."""

    field: str
    kind: Kind


@dataclass(frozen=True)
class Check:
    """What the fields must satisfy, and what to say when they do not, with each `{field}` filled in as key and value."""

    says: str
    holds: Callable[[Fields], bool]


@dataclass(frozen=True, kw_only=True)
class Layout(Generic[C]):
    """How one layout writes down a family's config: the names it has there, and the keys."""

    names: tuple[str, ...]
    """HF's `model_type`s, GGUF's architectures. The first is written."""
    keys: Mapping[str, Key]
    only: Mapping[str, tuple[Value, ...]]
    """Keys that could change the maths, with the values at which they do not."""
    harmless: tuple[str, ...]
    """Keys that change no result of a forward, beside those that no family minds; `*` stands for anything."""
    defaults: Mapping[str, Default]
    """Fields that the config may leave out; each default may look at the fields before it."""
    tensors_say: Mapping[str, Callable[[Checkpoint], Value]] = field(default_factory=dict)
    """Fields that the layout leaves to the tensors."""
    tensor_keys: Mapping[str, Callable[[Checkpoint], Value]] = field(default_factory=dict)
    """Keys whose values lie in tensors, by whose names they are called; None from one is like no key."""
    implied: Mapping[str, Callable[[C], Value]] = field(default_factory=dict)
    """Keys whose value follows from the fields. They are written; where given, they must agree, unless harmless or read."""
    agrees: Mapping[str, Callable[[C], Value]] = field(default_factory=dict)
    """The same for keys that nothing reads and nobody asks for: they are not written."""

    def spelled(self, name: str) -> str:
        """The key to write a field under: the first that gives it; the field's own name where none does."""
        return next((key for key, entry in self.keys.items() if entry.field == name), name)


ALSO = {"hf": ("transformers5",)}
"""Further layouts that a container's tensors may have, beside the one that goes with it."""


@dataclass(frozen=True, kw_only=True)
class Family(Generic[C]):
    """A family of models: a file in `families/` that assigns one to FAMILY adds it."""

    architecture: str | Callable[[C], str]
    """The class that config.json names, or what it is for a config."""
    config: type[C]
    model: Callable[[C], nn.Module]
    rope_width: str | None = None
    """The field that is the rotated width of a head, in families whose config has a `rope`."""
    checks: tuple[Check, ...]
    layouts: Mapping[str, Layout[C]]
    """The configs of files: "hf", "gguf"."""
    tables: Mapping[str, Callable[[C], Table]]
    """The tensors of files, and "transformers5": of its models in memory. What 4 has in memory is "hf"."""
    trunk: str = ""
    """What the names of the trunk begin with in the files of a whole model. One saved by its base class has them without."""

    def table(self, layout: str, config: C) -> Table:
        """The tensors of a layout for a model with this config, in every spelling."""
        table = self.tables[layout](config)
        return replace(table, aliases=(*table.aliases, Alias(f"{self.trunk}*", "*"))) if self.trunk else table

    def class_of(self, config: C) -> str:
        """The class that config.json names for a model with this config."""
        return self.architecture if isinstance(self.architecture, str) else self.architecture(config)
