"""What a family says about itself. The tests are generated from these records, and from nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from fixtures.values import Fill


@dataclass
class Call:
    """One call of a transformers module: what went in and what came out, cloned when it happened."""

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


@dataclass(frozen=True)
class Site:
    """A value that both sides have. `name` is its path inside the unit's reference module, "" for the output.

    axes: one letter an axis; "b s" rows are compared where the query is real, "b t" where the key is.
    theirs: reads it from transformers' call; None from it means that this version and backend do not show it.
    """

    name: str
    axes: str
    theirs: Callable[[Call], Tensor | None]
    absent: str = "not shown by transformers here"

    def read(self, call: Call) -> Tensor | None:
        """transformers' value, or None."""
        return call.planted[self.name] if self.name in call.planted else self.theirs(call)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A module of the reference and its twin. Paths may hold `{layer}`.

    feed: turns the twin's call, and what the reference itself used, into the reference module's arguments.
    None: compared as it runs inside the model only.
    """

    name: str
    hf: str
    level: str
    sites: tuple[Site, ...]
    feed: Callable[[Call, Mapping[str, Any]], tuple[Any, ...]] | None = None
    label: str | None = None

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
        return any(fnmatchcase(variant, pattern) for pattern in self.variants)

    def of(self, model: nn.Module) -> Any:
        """A copy of `model` that departs; it shares the weights."""
        copied = copy.deepcopy(model, {id(p): p for p in model.parameters()})
        self.apply(copied)
        return copied


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model family: where it is in transformers, its tiny variants, its sites, its deviations."""

    name: str
    hf_class: str
    variants: Mapping[str, Mapping[str, Any]]
    fill: Sequence[tuple[str, Fill]]
    units: tuple[Unit, ...]
    deviations: tuple[Deviation, ...]
    attention: tuple[str, ...] = ("eager", "sdpa")

    def units_of(self, n_layers: int) -> list[Unit]:
        """Every unit of a model with so many layers, in the order in which they run."""
        before = [u for u in self.units if u.level == "block" and "{layer}" not in u.name]
        inside = [u for u in self.units if "{layer}" in u.name]
        head = [u for u in before if u.name.split(".")[0] in ("embed", "rope", "mask")]
        tail = [u for u in before if u not in head] + [u for u in self.units if u.level == "model"]
        return head + [u.at(i) for i in range(n_layers) for u in inside] + tail

    def kinds(self) -> list[tuple[str, str, bool]]:
        """Every kind of site: its name, its level, and whether it is compared in isolation too."""
        return [
            (kind_of(unit.site_name(site).replace("{layer}", "0")), unit.level, unit.feed is not None)
            for unit in self.units
            for site in unit.sites
        ]
