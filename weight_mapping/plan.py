"""A table expanded for one model and checked: it takes tensors from a file's layout to the model's, and back."""

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from weight_mapping.errors import TensorError, named
from weight_mapping.patterns import Index, found, indices, settings, spelled_out
from weight_mapping.rules import Drop, Rule, Table, Tensors

_NO_FP8 = "FP8 is not supported yet: take or make a copy of the checkpoint in bfloat16"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every name spelled out, each with its shape as an empty tensor on the meta device."""

    rules: tuple[Rule, ...]
    drops: tuple[Drop, ...]
    index: Index
    sources: Mapping[str, Tensor]
    """What the layout holds."""
    copies: Mapping[str, Tensor]
    """What it may hold as well or instead: further names of a tied tensor."""
    targets: Mapping[str, Tensor]
    """What the model holds."""
    spellings: Mapping[str, tuple[str, ...]]
    """The further spellings of a name of `sources` or `copies`, where it has any."""

    def spelled_as(self, names: Collection[str]) -> "Plan":
        """The same plan for a file with these names, which may be other spellings than the table's."""
        found = {
            name: next((other for other in others if other in names), name)
            for name, others in self.spellings.items()
            if name not in names
        }

        def spelled(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {found.get(name, name): tensor for name, tensor in tensors.items()}

        rules = tuple(replace(rule, sources=tuple(found.get(name, name) for name in rule.sources)) for rule in self.rules)
        return replace(self, rules=rules, sources=spelled(self.sources), copies=spelled(self.copies))

    def every_name(self) -> Iterator[str]:
        """Every name that a file may have, in every spelling, but for those that are dropped."""
        for name in itertools.chain(self.sources, self.copies):
            yield from (name, *self.spellings.get(name, ()))

    def own_name(self, name: str) -> str:
        """The table's spelling of a name of a file."""
        return next((own for own, others in self.spellings.items() if name in others), name)

    def missing(self, names: Collection[str]) -> list[str]:
        """What must be among a file's names and is not; of copies, the first."""
        return [name for rule in self.rules for name in _missing(rule, names)]

    def check(self, tensors: Mapping[str, Tensor], *, widen: bool = False) -> None:
        """Raise TensorError unless `tensors`, on any device, are just those of the layout, in shape and as floats.

        widen: those that make one parameter may be of several dtypes, see `carry`.
        """
        dropped = self.dropped(tensors)
        _check_each({name: t for name, t in tensors.items() if name not in dropped}, {**self.sources, **self.copies})
        for rule in self.rules:
            for name in _missing(rule, tensors):
                raise TensorError(name, f"tensor {named(name)} is missing, and {rule.targets[0]!r} is made of it")
            if rule.tied or not widen:
                _check_dtypes(rule.sources, tensors)

    def dropped(self, names: Collection[str]) -> dict[str, Drop]:
        """Those of a file's names that no parameter takes, with the reason."""
        markers = dict.fromkeys(drop.beside for drop in self.drops if drop.beside)
        places = {marker: list(found(marker, self.index, names)) for marker in markers}
        out: dict[str, Drop] = {}
        for drop in self.drops:
            for place in places[drop.beside] if drop.beside else [{}]:
                index = {**self.index, **{name: (value,) for name, value in place.items()}}
                out |= dict.fromkeys((name for name in spelled_out(drop.source, index) if name in names), drop)
        _claim_once("tensor", itertools.chain(((name, r) for r in self.rules for name in r.sources), out.items()))
        return out

    def forward(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The layout's tensors as the model's parameters: their values, gradients or optimizer state."""
        self.check(tensors)
        return self.carry(tensors)

    def carry(self, tensors: Mapping[str, Tensor], *, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """`forward` for tensors that `check` has passed, by their headers perhaps: each is read once.

        Those of several dtypes that make one parameter are widened to one that holds them all. dtype: of what the file
        leaves out.
        """
        out: dict[str, Tensor] = {}
        for rule in self.rules:
            group = tuple(tensors[name] for name in rule.sources if name in tensors)
            if not group and rule.otherwise is not None:
                (target,) = rule.targets
                out[target] = torch.full(self.targets[target].shape, rule.otherwise, dtype=dtype)
                continue
            if rule.tied:
                group = _same(rule.sources, group)
            wide = reduce(torch.promote_types, (t.dtype for t in group))
            group = tuple(t.to(wide) for t in group)
            for op in rule.ops:
                group = op(group)
            out.update(zip(rule.targets, group, strict=True))
        return out

    def backward(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of `forward`. What is tied is given once, and what was dropped is not made up."""
        _check_each(parameters, self.targets)
        out: dict[str, Tensor] = {}
        for rule in self.rules:
            for name in rule.targets:
                if name not in parameters:
                    raise TensorError(name, f"tensor {name!r} is missing, and {rule.sources[0]!r} is made of it")
            _check_dtypes(rule.targets, parameters)
            out.update(_undo(rule, tuple(parameters[name] for name in rule.targets)))
        return out


def plan(table: Table, parameters: Mapping[str, Tensor]) -> Plan:
    """Expand `table` for a model with these parameters (only their names and shapes are looked at), and check it.

    Takes time linear in the number of names. Raises TensorError when a tensor is claimed twice, or a parameter is
    written twice or never.
    """
    targets = {name: torch.empty_like(p, device="meta", requires_grad=False) for name, p in parameters.items()}
    rules = tuple(r for rule in table.rules for r in _expand(rule, table.index) if _applies(r, targets))
    drops = tuple(
        replace(drop, source=source, beside=beside)
        for drop in table.drops
        for source in table.spellings(drop.source)
        for beside in (table.spellings(drop.beside) if drop.beside else (None,))
        if source != beside or drop.source == drop.beside  # respelled, one tensor may bear both names
    )
    dropped = ((name, drop) for drop in drops if not drop.beside for name in spelled_out(drop.source, table.index))
    spellings = {name: table.spellings(name) for rule in rules for name in rule.sources}
    claimed = ((name, rule) for rule in rules for own in rule.sources for name in spellings[own])
    _claim_once("tensor", itertools.chain(claimed, dropped))
    written = _claim_once("parameter", ((name, r) for r in rules for name in r.targets))
    for name in targets:
        if name not in written:
            raise TensorError(name, f"parameter {name!r} is written by no rule of the table")

    sources: dict[str, Tensor] = {}
    for rule in rules:  # what the file must hold is what the inverse makes of the model
        sources |= _undo(rule, tuple(targets[name] for name in rule.targets))
    copies = {name: sources[rule.sources[0]] for rule in rules if rule.tied for name in rule.sources[1:]}
    return Plan(
        rules=rules,
        drops=drops,
        index=table.index,
        sources=sources,
        copies=copies,
        targets=targets,
        spellings={name: found[1:] for name, found in spellings.items() if found[1:]},
    )


def source_of(name: str, table: Table, parameters: Mapping[str, Tensor]) -> Tensor | None:
    """What the layout holds under `name`: `plan(table, parameters).sources.get(name)`, without spelling out the rest."""
    for rule in table.rules:
        for source in rule.sources:
            for place in found(source, table.index, [name]):
                shared = set.intersection(*map(indices, rule.sources + rule.targets))
                index = {**table.index, **{key: (value,) for key, value in place.items() if key in shared}}
                for one in _expand(rule, index):
                    if _applies(one, parameters):
                        return _undo(one, tuple(parameters[target] for target in one.targets)).get(name)
    return None


def longest_index(table: Table) -> tuple[int, str]:
    """How many copies of a rule a table makes at most, and by which index: to be seen before any is spelled out."""
    shared = (set.intersection(*map(indices, rule.sources + rule.targets)) for rule in table.rules)
    return max((len(table.index[name]), name) for name in set.union(*shared))


def n_names(table: Table) -> int:
    """How many names of tensors a table comes to when it is spelled out: how long that takes, too."""
    return sum(
        math.prod(len(table.index[name]) for name in indices(source)) for rule in table.rules for source in rule.sources
    )


def _undo(rule: Rule, group: Tensors) -> dict[str, Tensor]:
    for op in reversed(rule.ops):
        group = op.inverse(group)
    if not rule.tied:
        return dict(zip(rule.sources, group, strict=True))
    return dict.fromkeys(rule.sources if rule.all_written else rule.sources[:1], group[0])


def _expand(rule: Rule, index: Index) -> Iterator[Rule]:
    """The rule once for every value of the indices that its patterns share, with the others listed out."""
    has = {pattern: indices(pattern) for pattern in rule.sources + rule.targets}
    shared = set.intersection(*has.values())
    inner = {pattern: list(settings(own - shared, index)) for pattern, own in has.items()}
    for outer in settings(shared, index):
        sources = tuple(p.format(**outer, **own) for p in rule.sources for own in inner[p])
        targets = tuple(p.format(**outer, **own) for p in rule.targets for own in inner[p])
        yield replace(rule, sources=sources, targets=targets)


def _applies(rule: Rule, targets: Mapping[str, Tensor]) -> bool:
    present = [name in targets for name in rule.targets]
    if any(present) and not all(present):
        lacking = rule.targets[present.index(False)]
        raise TensorError(lacking, f"{rule} writes {lacking!r}, which the model lacks")
    return all(present)


def _claim_once(what: str, claims: Iterable[tuple[str, Rule | Drop]]) -> dict[str, Rule | Drop]:
    owners: dict[str, Rule | Drop] = {}
    for name, owner in claims:
        if name in owners:
            raise TensorError(name, f"{what} {name!r} is claimed twice, by ({owners[name]}) and by ({owner})")
        owners[name] = owner
    return owners


def _check_each(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if name not in expected:
            why = (
                f"holds the scales of FP8 weights, {_NO_FP8}"
                if name.endswith("_scale_inv")
                else "is unexpected, no rule takes it"
            )
            raise TensorError(name, f"tensor {named(name)} {why}")
        if tensor.shape != expected[name].shape:
            shapes = f"shape {tuple(tensor.shape)} where {tuple(expected[name].shape)} is expected"
            raise TensorError(name, f"tensor {named(name)} has {shapes}")
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            wants = "a float of 16 bits or more is expected"
            what = _NO_FP8 if tensor.is_floating_point() else "dequantize it"
            raise TensorError(name, f"tensor {named(name)} is {tensor.dtype} where {wants}; {what}")


def _missing(rule: Rule, names: Collection[str]) -> list[str]:
    lacking = [name for name in rule.sources if name not in names]
    if rule.otherwise is not None:
        return []
    return lacking if not rule.tied else lacking[:1] if len(lacking) == len(rule.sources) else []


def _check_dtypes(names: Sequence[str], tensors: Mapping[str, Tensor]) -> None:
    """Raise unless these share a dtype, as far as they are there: no rule casts."""
    dtypes = {tensors[name].dtype: name for name in names if name in tensors}
    if len(dtypes) > 1:
        (one, first), (two, second) = list(dtypes.items())[:2]
        kinds = f"tensors {named(first)} ({one}) and {named(second)} ({two}) make one parameter"
        raise TensorError(first, f"{kinds}; store them in one dtype")


def _same(names: Sequence[str], copies: Tensors) -> Tensors:
    """The one tensor that tied copies are; meta tensors have no values that could differ."""
    if any(not copy.is_meta and not torch.equal(copy, copies[0]) for copy in copies[1:]):
        both = " and ".join(map(named, names))
        raise TensorError(names[-1], f"tensors {both} differ where the config ties them; untie it or store one")
    return copies[:1]
