"""What a family says about itself. The tests are generated from these records, and from nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from packaging.version import Version
from torch import Tensor, nn


@dataclass
class Call:
    """One call of a transformers module: what went in and what came out, cloned when it happened."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    cached: tuple[Tensor, Tensor] | None = None
    """Keys and values of this layer after the call, for units that have a cache."""
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


@dataclass(frozen=True)
class Site:
    """A value that both sides have. `name` is its path inside the unit's reference module, "" for the output.

    axes: one letter an axis. Rows are compared where their query "s", their key "t" or their token "n" is real.
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
    """

    name: str
    hf: str
    level: str
    sites: tuple[Site, ...]
    feed: Callable[[Call, Mapping[str, Any]], tuple[Any, ...]] | None = None
    label: str | None = None
    where: Callable[[Any, int], bool] = everywhere
    routes: Callable[[Call], Tensor | None] | None = None

    def at(self, layer: int) -> Unit:
        """This unit in one layer."""
        place = {"layer": layer}
        return Unit(**{**vars(self), "name": self.name.format(**place), "hf": self.hf.format(**place)})

    def site_name(self, site: Site) -> str:
        """The full name of a site: `layers.1.attn.probs`."""
        return ".".join(part for part in (self.label or self.name, site.name) if part)


def kind_of(site_name: str) -> str:
    """A site's name without its layer: `layers.1.attn.probs` -> `attn.probs`, `layers.1` -> `layer`."""
    parts = site_name.split(".")
    if parts[0] != "layers":
        return site_name
    return ".".join(parts[2:]) or "layer"


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A named single departure of the reference, which must show, be caught at `site`, and explain.

    apply: changes a module of the reference in place, wherever in its tree the thing to change is.
    variants: patterns of the variants in which it is live. site: the kind of the first site that shows it; "cache" when
    only a run over a cache does.
    """

    name: str
    site: str
    apply: Callable[[nn.Module], None]
    variants: tuple[str, ...] = ("*",)

    def concerns(self, variant: str) -> bool:
        """Whether it is live in a variant."""
        return any(fnmatchcase(variant, pattern) for pattern in self.variants)

    def of(self, model: nn.Module) -> Any:
        """A copy of `model` that departs; it shares the weights."""
        copied = copy.deepcopy(model, {id(p): p for p in model.parameters()})
        self.apply(copied)
        return copied


@dataclass(frozen=True, kw_only=True)
class Known:
    """A difference that is upstream's own and known. It covers its sites and what lies downstream of them, and is an error
    itself once it stops appearing in the releases from `since` to before `until`.

    sites: kinds of sites as test ids have them, or patterns of those of caches and generation; where the first is not
    shown, the next stands in for it. downstream: whether it changes what comes after. explained: the deviation that says
    what transformers does instead, checked where it appears.
    """

    name: str
    sites: tuple[str, ...]
    link: str
    since: str = "0"
    until: str | None = None
    variants: tuple[str, ...] = ("*",)
    downstream: bool = True
    explained: str | None = None

    def concerns(self, variant: str, version: str) -> bool:
        """Whether it is to be expected in this release."""
        inside = Version(self.since) <= Version(version) and (self.until is None or Version(version) < Version(self.until))
        return inside and any(fnmatchcase(variant, pattern) for pattern in self.variants)

    def at(self, kind: str) -> bool:
        """Whether a kind of site, or a site of a cache or of generation, is one of its own."""
        return any(fnmatchcase(kind, pattern) for pattern in self.sites)

    @property
    def note(self) -> str:
        """Its name, and where to read of it."""
        return f"{self.name} ({self.link})"


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
class Family:
    """One model family: where it is in transformers, its tiny variants, its sites, its deviations."""

    name: str
    hf_class: str
    variants: Mapping[str, Mapping[str, Any]]
    units: tuple[Unit, ...]
    deviations: tuple[Deviation, ...]
    backends: tuple[Backend, ...] = (Backend("eager"), Backend("sdpa"))
    known: tuple[Known, ...] = ()

    def units_of(self, config: Any) -> list[Unit]:
        """Every unit of a model with this config, in the order in which they run."""
        inside = [i for i, unit in enumerate(self.units) if "{layer}" in unit.name]
        first, last = inside[0], inside[-1] + 1
        layers = [
            unit.at(layer) for layer in range(config.n_layers) for unit in self.units[first:last] if unit.where(config, layer)
        ]
        return [*self.units[:first], *layers, *self.units[last:]]

    def kinds(self, config: Any) -> list[tuple[str, str, bool]]:
        """Every kind of site of a model: its name, its level, and whether it is compared in isolation too."""
        found = {
            kind_of(unit.site_name(site)): (unit.level, unit.feed is not None)
            for unit in self.units_of(config)
            for site in unit.sites
        }
        return [(kind, *facts) for kind, facts in found.items()]
