"""What a family says about itself. The tests are generated from these records, and from nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from packaging.version import Version
from torch import Tensor, nn

from parity_tests.harness.batches import Batch, Reads
from parity_tests.harness.memory import of_model
from parity_tests.harness.names import kind_of
from reference_impl import initialisation
from reference_impl.initialisation import Table


@dataclass
class Call:
    """One call of a transformers module: what went in and what came out, cloned when it happened."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    cached: tuple[Tensor, ...] | None = None
    """What the cache holds of this layer after the call, for units inside a layer: keys and values mostly."""
    planted: dict[str, Tensor] = field(default_factory=dict)
    """Values, by site, put in place of what transformers gave: how the tests of the tests make it wrong."""

    def argument(self, position: int, *names: str) -> Any:
        """An argument by position or by any of the names that releases gave it; None when it was not passed."""
        for name in names:
            if name in self.kwargs:
                return self.kwargs[name]
        return self.args[position] if position < len(self.args) else None

    @property
    def tensor(self) -> Tensor:
        """The output, or the first of it where a release returned a tuple."""
        return self.output[0] if isinstance(self.output, tuple) else self.output


def everywhere(config: Any, layer: int) -> bool:
    """Of a unit that every layer has."""
    return True


class Arguments:
    """What a module of the reference is called with."""

    def __init__(self, *args: Any, **kwargs: Any):
        self.args, self.kwargs = args, kwargs


@dataclass(frozen=True)
class Site:
    """A value that both sides have. `name` is its path inside the unit's reference module, "" for the output.

    axes: one letter an axis. Rows are compared where their query "s", their token of the memory "m", their key "t" or their
    token "n", of all rows in one axis, is real.
    theirs: reads it from transformers' call; None from it means that this version and backend do not show it.
    mine: reads it from the reference's unit and its output, for a value that is no tensor by itself.
    choice: this is a choice among experts, which rounding may flip, see `Router`.
    """

    name: str
    axes: str
    theirs: Callable[[Call], Tensor | None]
    absent: str = "not shown by transformers here"
    mine: Callable[[Any, Any], Tensor] | None = None
    choice: bool = False

    def read(self, call: Call) -> Tensor | None:
        """transformers' value, or None."""
        return call.planted[self.name] if self.name in call.planted else self.theirs(call)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A module of the reference and its twin. Paths may hold `{layer}`.

    feed: turns the twin's call, and what the reference itself used, into the reference module's arguments.
    None: compared as it runs inside the model only.
    where: the layers that have it. routes: reads the experts (n, k) that transformers chose, from a router's unit.
    layer: the one that it is in.
    until: the module that ends the block, where transformers has none for it and `hf` only begins it.
    """

    name: str
    hf: str
    level: str
    sites: tuple[Site, ...]
    feed: Callable[[Call, Mapping[str, Any]], Arguments] | None = None
    label: str | None = None
    where: Callable[[Any, int], bool] = everywhere
    routes: Callable[[Call], Tensor | None] | None = None
    layer: int | None = None
    until: str | None = None

    def at(self, layer: int, **place: Any) -> Unit:
        """This unit in one layer; `{layer}` in its paths is the number, unless `place` says otherwise."""
        place = {"layer": layer, **place}
        named = {"name": self.name.format(**place), "hf": self.hf.format(**place), "layer": layer}
        until = self.until.format(**place) if self.until else None
        return Unit(**{**vars(self), **named, "until": until})

    def site_name(self, site: Site) -> str:
        """The full name of a site: `layers.1.attn.probs`."""
        return ".".join(part for part in (self.label or self.name, site.name) if part)


def in_layers(units: Sequence[Unit], config: Any, n_layers: int) -> list[Unit]:
    """Units of a layer, once for each layer that has them, in the order in which they run."""
    return [unit.at(layer) for layer in range(n_layers) for unit in units if unit.where(config, layer)]


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A named single departure of the reference, which must show, be caught at `site`, and explain.

    apply: changes a module of the reference in place, wherever in its tree the thing to change is.
    variants: patterns of the variants in which it is live. site: the kind of the first site that shows it; where no unit
    does, "cache" for a run over a cache, "dynamic.chunks" for one of several tokens at once, or `TRAINING`.
    """

    name: str
    site: str
    apply: Callable[[nn.Module], None]
    variants: tuple[str, ...] = ("*",)

    def concerns(self, variant: str) -> bool:
        """Whether it is live in a variant."""
        return any(fnmatchcase(variant, pattern) for pattern in self.variants)

    def of(self, model: nn.Module) -> Any:
        """A copy of `model` that departs, see `departing`."""
        return departing(model, (self,))


def departing(model: nn.Module, deviations: tuple[Deviation, ...]) -> Any:
    """A copy of `model` that departs in these ways, made once; it shares the weights. Without any, `model` itself."""

    def make() -> nn.Module:
        copied = copy.deepcopy(model, {id(p): p for p in model.parameters()})
        for deviation in deviations:
            deviation.apply(copied)
        return copied

    return of_model(model, deviations, make) if deviations else model


def any_config(config: Any) -> bool:
    """Of a difference that every model of a family has."""
    return True


TRAINING = "training"
"""The site of a deviation that only a pass in training mode shows."""

AS_ONE_READS = "transformers gives what the reference gives for the same inputs"
"""Explains that a law does not hold, where the reference, asked alike, does not keep it either."""

FOUND_HERE = "found here"
"""The link of a difference that was not read of anywhere: it stands in FINDINGS.md."""

LOADING, FORWARD = "loading", "forward"
"""The sites of what keeps transformers from giving anything at all: it raises when it loads a model, or when it runs one."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """A difference that is upstream's own and known, in the releases from `since` to before `until`. What it covers, and
    when it has to show, are the rules of `harness/known.py`.

    sites: where it shows, one by one: kinds of sites as test ids have them, and those of caches, generation, training and
    the rest. Of kinds, where the first is not shown, the next stands in for it. where: the configs that have it, of the
    reference; says: what config.json says in those that have it, where spellings of one config differ; variants: patterns of
    their names, where that is of the tensors. attention, precisions: with which of them it appears. explained: the deviation
    that says what transformers does instead, or `AS_ONE_READS`; whatever else the case is asked is compared with that, but
    for a `local` one, which is of its sites alone, as another way into the model is. Without one, `unexplained` says why
    there is none, and it covers its sites and no others. raises: the exception that it is, of those that are one. smallest:
    what to type to see it, for a person.
    """

    name: str
    sites: tuple[str, ...]
    link: str
    since: str = "0"
    until: str | None = None
    where: Callable[[Any], bool] = any_config
    says: Callable[[Mapping[str, Any]], bool] = any_config
    variants: tuple[str, ...] = ("*",)
    attention: tuple[str, ...] = ("eager", "sdpa")
    precisions: tuple[str, ...] = ("f64", "f32", "bf16", "f16")
    explained: str | None = None
    local: bool = False
    unexplained: str = ""
    raises: str | None = None
    smallest: str = ""

    def names(self, variant: str) -> bool:
        """Whether it is of a variant by its name."""
        return any(fnmatchcase(variant, pattern) for pattern in self.variants)

    def in_release(self, version: str) -> bool:
        """Whether a release has it."""
        return Version(self.since) <= Version(version) and (self.until is None or Version(version) < Version(self.until))

    @property
    def note(self) -> str:
        """Its name, and where to read of it."""
        return f"{self.name} ({self.link})"


CONFIG_ALONE = "a config computes nothing, and what follows from it is compared where it shows"
"""Why what transformers makes of a config.json needs no explanation beside that of its effects."""


@dataclass(frozen=True)
class Backend:
    """How transformers computes: its attention, and its experts where a family has some; and in which precisions and
    variants that is compared, for the product of all says no more than its parts.
    """

    attention: str
    experts: str = ""
    precisions: tuple[str, ...] = ("f64", "f32", "bf16", "f16")
    variants: tuple[str, ...] = ("*",)

    def serves(self, variant: str) -> bool:
        """Whether it is compared in a variant."""
        return any(fnmatchcase(variant, pattern) for pattern in self.variants)

    def __str__(self) -> str:
        return f"{self.attention}.{self.experts}" if self.experts else self.attention


@dataclass(frozen=True, kw_only=True)
class Alone:
    """Variants that are there for one thing, which rounding and backends show elsewhere: compared under the lens with the first
    backend, at these levels, and there at the kinds of sites that show it. Both are patterns.
    """

    variants: tuple[str, ...]
    sites: tuple[str, ...] = ("*",)
    levels: tuple[str, ...] = ("config", "block", "model")

    def concerns(self, variant: str) -> bool:
        """Whether a variant is one of these."""
        return any(fnmatchcase(variant, pattern) for pattern in self.variants)

    def shows(self, kind: str) -> bool:
        """Whether a kind of site is compared."""
        return any(fnmatchcase(kind, pattern) for pattern in self.sites)


PUBLISHED = Alone(variants=("defaults", "published-*"), levels=("config", "block", "layer", "model", "cache", "generation"))
"""Configs that leave everything to the defaults but the sizes, and those that their makers published."""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What a forward gives beside logits: a tensor, or a tuple with one a layer, and where the reference has them.

    name: transformers', of the output's field. sites: full names of the reference's sites, in order, of the units of a model;
    none where it has none of them. axes: of each. switch: the argument, and field of the config, that asks for it; None for
    what is always given. alone: a tensor, and no tuple.
    """

    name: str
    sites: Callable[[Sequence[Unit]], list[str]]
    axes: str
    switch: str | None = None
    alone: bool = False


@dataclass(frozen=True, kw_only=True)
class Fed:
    """What both sides are given, `mine` by the reference's names and `theirs` by transformers', there with so many choices a
    row.
    """

    mine: Mapping[str, Tensor]
    theirs: Mapping[str, Tensor]
    choices: int = 1


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a head is for. gives: its outputs by transformers' names, of what the head gives and of the batch.

    labels: what there is to learn, by transformers' names, in each way that it tells apart. loss: of a way, outputs, labels.
    over_padding: the loss is of padding too, whose vectors are undefined, so that it is compared without any.
    """

    gives: Callable[[Tensor], Mapping[str, Tensor]]
    labels: Callable[[Batch, Mapping[str, Tensor]], Mapping[str, Mapping[str, Tensor]]] = lambda batch, out: {}
    loss: Callable[[str, Mapping[str, Tensor], Mapping[str, Tensor]], Tensor] | None = None
    over_padding: bool = False


@dataclass(frozen=True, kw_only=True)
class Sibling:
    """Another class that transformers has for a family: a part of the reference's model runs, what a module of it gives is
    picked from, and a head lies on that.

    feed: what they read, of a batch and of transformers' config. part: the module that runs, "" for all. site: the module
    that is read, of that part; `{last}` is the last layer. also: further outputs, and their modules. pick: of the module's
    output, the batch and what was fed. head: of the reference's config and the number of labels, or the path of a module that
    the reference has; None: what was picked is given. tensors: by the head's layers, transformers' names of them. copies:
    tensors that the file needs once more, and their first names. under: what stands before the trunk's names in the file,
    where the class says another. variant: whose checkpoint lends the trunk, "" for the first.
    """

    task: Task
    feed: Callable[[Batch, Any], Fed]
    site: str
    part: str = ""
    also: Mapping[str, str] = field(default_factory=dict)
    pick: Callable[[Tensor, Batch, Fed], Tensor] = lambda y, batch, fed: y
    head: Callable[[Any, int], nn.Module] | str | None = None
    tensors: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    n_labels: tuple[int, ...] = (3,)
    under: str = ""
    variant: str = ""


def reads_text(config: Any) -> Reads:
    """What a decoder-only model with rotary positions reads."""
    return Reads(vocab_size=config.vocab_size)


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model family: where it is in transformers, its tiny variants, its sites, its deviations.

    hf_class: of checkpoints whose config.json names none of the installed release's classes. variants: config.json files by
    name. units: every unit of a model with this config, in the order in which they run. reads: what such a model is given.
    caches: the kinds that transformers has for it, and holds: the axes of what they hold of a layer.
    beside: what a forward gives beside logits. siblings: its other classes, or why one is not compared. inert: fields of
    transformers' config that change no number of a forward, with the reason; `*` stands for anything. alone: the variants
    that are there for one thing.
    """

    name: str
    hf_class: str
    variants: Mapping[str, Mapping[str, Any]]
    units: Callable[[Any], Sequence[Unit]]
    deviations: tuple[Deviation, ...]
    reads: Callable[[Any], Reads] = reads_text
    caches: tuple[str, ...] = ("dynamic", "static")
    holds: tuple[str, ...] = ("b g t e", "b g t e", "b g m e", "b g m e")
    backends: tuple[Backend, ...] = (Backend("eager"), Backend("sdpa"))
    beside: tuple[Beside, ...] = ()
    siblings: Mapping[str, Sibling | str] = field(default_factory=dict)
    known: tuple[Known, ...] = ()
    inert: Mapping[str, str] = field(default_factory=dict)
    alone: tuple[Alone, ...] = ()
    initial: Table = initialisation.decoder
    """What its parameters begin as."""

    def deviation(self, name: str) -> Deviation:
        """The deviation of this name; of several, which differ in where they show, the first will do.

        Errors: KeyError when the record lists none.
        """
        return {deviation.name: deviation for deviation in reversed(self.deviations)}[name]

    def units_of(self, config: Any) -> list[Unit]:
        """Every unit of a model with this config, in the order in which they run."""
        return list(self.units(config))

    def kinds(self, config: Any) -> list[tuple[str, str, bool]]:
        """Every kind of site of a model: its name, its level, and whether it is compared in isolation too."""
        found = {
            kind_of(unit.site_name(site)): (unit.level, unit.feed is not None)
            for unit in self.units_of(config)
            for site in unit.sites
        }
        return [(kind, *facts) for kind, facts in found.items()]
