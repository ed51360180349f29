"""The algebra of checkpoint layouts: invertible operations, the rules that chain them, and the tables of rules.

A rule leads tensors of a file to parameters of the reference. Its patterns hold indices, as `{layer}`. An index that
all patterns of a rule share runs over copies of the rule; one that only one side has lists several tensors in order:

    rename("model.layers.{layer}.mlp.experts.{expert}.up_proj.weight", "layers.{layer}.ffn.up", Stack())

stacks the experts of a layer, and does so for each layer.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from weight_mapping.patterns import Index

Tensors = tuple[Tensor, ...]


class Op(Protocol):
    """Some tensors in, some out, no bit of a value changed. `op.inverse(op(x))` is `x`, shape and dtype included."""

    def __call__(self, tensors: Tensors) -> Tensors: ...

    @property
    def inverse(self) -> "Op": ...


@dataclass(frozen=True)
class Transpose:
    """(..., a, b) -> (..., b, a), of each tensor."""

    def __call__(self, tensors: Tensors) -> Tensors:
        return tuple(t.mT for t in tensors)

    @property
    def inverse(self) -> "Transpose":
        return self


@dataclass(frozen=True)
class Split:
    """(heads * sum(sizes), ...) -> one (heads * size, ...) a size: every head's rows are cut in the same places."""

    sizes: tuple[int, ...]
    heads: int = 1
    dim: int = 0

    def __call__(self, tensors: Tensors) -> Tensors:
        (whole,) = tensors
        by_head = whole.unflatten(self.dim, (self.heads, sum(self.sizes)))
        return tuple(part.flatten(self.dim, self.dim + 1) for part in by_head.split(self.sizes, self.dim + 1))

    @property
    def inverse(self) -> "Concatenate":
        return Concatenate(self.sizes, self.heads, self.dim)


@dataclass(frozen=True)
class Concatenate:
    """One (heads * size, ...) a size -> (heads * sum(sizes), ...): the inverse of `Split`."""

    sizes: tuple[int, ...]
    heads: int = 1
    dim: int = 0

    def __call__(self, tensors: Tensors) -> Tensors:
        by_head = [t.unflatten(self.dim, (self.heads, n)) for t, n in zip(tensors, self.sizes, strict=True)]
        return (torch.cat(by_head, self.dim + 1).flatten(self.dim, self.dim + 1),)

    @property
    def inverse(self) -> Split:
        return Split(self.sizes, self.heads, self.dim)


@dataclass(frozen=True)
class Stack:
    """n of (...) -> one (n, ...). `into` more than one: that many runs of n, one after the other, to one each."""

    into: int = 1

    def __call__(self, tensors: Tensors) -> Tensors:
        n = len(tensors) // self.into
        return tuple(torch.stack(tensors[i : i + n]) for i in range(0, len(tensors), n))

    @property
    def inverse(self) -> "Unstack":
        return Unstack(self.into)


@dataclass(frozen=True)
class Unstack:
    """(n, ...) -> n of (...), of each tensor: the inverse of `Stack`."""

    into: int = 1

    def __call__(self, tensors: Tensors) -> Tensors:
        return tuple(part for whole in tensors for part in whole.unbind())

    @property
    def inverse(self) -> Stack:
        return Stack(self.into)


@dataclass(frozen=True)
class PairsToHalves:
    """Reorder the rows of each head for RoPE, (heads * e, ...): 0 1 2 3 4 5 -> 0 2 4 1 3 5.

    Components that turn together lie side by side before, and half a head apart after.
    """

    heads: int

    def __call__(self, tensors: Tensors) -> Tensors:
        return tuple(t.unflatten(0, (self.heads, -1, 2)).transpose(1, 2).flatten(0, 2) for t in tensors)

    @property
    def inverse(self) -> "HalvesToPairs":
        return HalvesToPairs(self.heads)


@dataclass(frozen=True)
class HalvesToPairs:
    """Reorder the rows of each head for RoPE, (heads * e, ...): 0 2 4 1 3 5 -> 0 1 2 3 4 5."""

    heads: int

    def __call__(self, tensors: Tensors) -> Tensors:
        return tuple(t.unflatten(0, (self.heads, 2, -1)).transpose(1, 2).flatten(0, 2) for t in tensors)

    @property
    def inverse(self) -> PairsToHalves:
        return PairsToHalves(self.heads)


@dataclass(frozen=True)
class Rule:
    """Leads `sources` through `ops` to `targets`. Without ops it renames, one to one."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    ops: tuple[Op, ...] = ()
    tied: bool = False
    """The sources are copies of one tensor. A file may carry any of them; the first is the one to write."""
    all_written: bool = False
    """Write every copy, as some readers look for one of them, and some for another."""
    otherwise: float | None = None
    """What the target is filled with where a file leaves its source out, as all readers of this layout do."""

    def __str__(self) -> str:
        return f"{' + '.join(self.sources)} -> {' + '.join(self.targets)}"


def rename(source: str, target: str, *ops: Op) -> Rule:
    """One tensor to one parameter."""
    return Rule((source,), (target,), ops)


def tie(sources: tuple[str, ...], target: str, *, all_written: bool = False) -> Rule:
    """Copies of one tensor to the one parameter that they are."""
    return Rule(sources, (target,), tied=True, all_written=all_written)


@dataclass(frozen=True, kw_only=True)
class Drop:
    """A tensor that no parameter takes, and why.

    beside: only where a file has this tensor as well. Its indices are then those that the file has, so that their
    ranges may be as long as one likes.
    """

    source: str
    reason: str
    beside: str | None = None


@dataclass(frozen=True)
class Alias:
    """Another spelling of names in some files: the one `*` of `ours` and of `other` stands for the same text.

        Alias("transformer.*", "*")         # the trunk's names without their prefix
        Alias("*LayerNorm.bias", "*LayerNorm.beta")
    """

    ours: str
    other: str

    def __call__(self, name: str) -> str | None:
        """The other spelling of a name, or None where it has none."""
        prefix, suffix = self.ours.split("*")
        inside = name.removeprefix(prefix).removesuffix(suffix)
        return self.other.replace("*", inside) if prefix + inside + suffix == name else None


@dataclass(frozen=True, kw_only=True)
class Table:
    """One layout of one model. A rule whose targets the model lacks (its biases, say) is passed over."""

    index: Index
    rules: tuple[Rule, ...]
    drops: tuple[Drop, ...] = ()
    aliases: tuple[Alias, ...] = ()
    """How files may spell the names too, by any of these or by several. What is written has the table's spelling."""

    def spellings(self, name: str) -> tuple[str, ...]:
        """A name, or a pattern of names, in every spelling; its own is the first."""
        found = [name]
        for alias in self.aliases:
            found += [other for other in map(alias, found) if other is not None]
        return tuple(dict.fromkeys(found))
