"""What lies in a checkpoint, taken apart so that it can be changed: a config and parameters, and how the reference departs."""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import weight_mapping
from parity_tests.families import FAMILIES
from parity_tests.harness.record import Deviation, Family
from weight_mapping import open_checkpoint
from weight_mapping.config import read_config
from weight_mapping.family import Family as Mapped
from weight_mapping.loading import assembled, family_of, layout_of, parameters_of, plan_for

M = TypeVar("M", bound=nn.Module)
LAYER = re.compile(r"((?:.*\.)?layers\.)(\d+)\.(.+)")


@dataclass(frozen=True, kw_only=True)
class Patient:
    """A checkpoint, or what a repair made of it. Parameters are in the file's dtype, each tied one once."""

    family: Mapped
    config: Any
    parameters: Mapping[str, Tensor]
    departures: tuple[Deviation, ...] = ()

    @property
    def record(self) -> Family:
        """What the suite knows of its family."""
        return FAMILIES[self.family.layouts["hf"].names[0]]

    def model(self) -> Any:
        """The reference in float32, with the departures."""
        wide = {name: t.detach().float() if t.is_floating_point() else t for name, t in self.parameters.items()}
        model = assembled(self.family, self.config, wide)
        for departure in self.departures:
            model = copy.deepcopy(model, {id(p): p for p in model.parameters()})
            departure.apply(model)
        return model

    def written(self) -> Any:
        """The reference in the file's own dtypes, to be saved."""
        return assembled(self.family, self.config, self.parameters)

    def changed(self, other: Patient) -> dict[str, Tensor]:
        """The parameters that are not those of another, as the reference in float32 takes them."""
        return {name: t.float() for name, t in self.parameters.items() if t is not other.parameters[name]}

    def with_parameters(self, changed: Mapping[str, Tensor]) -> Patient:
        """The same with other values of some."""
        return replace(self, parameters={**self.parameters, **changed})

    def with_config(self, config: Any) -> Patient:
        """The same under another config, without the parameters that its model has not."""
        with torch.device("meta"):
            names = parameters_of(self.family.model(config))
        return replace(
            self, config=config, parameters={name: t for name, t in self.parameters.items() if name in names}
        )

    def modules(self, kind: type[M] | tuple[type[M], ...]) -> list[tuple[str, M]]:
        """The modules of a kind with their paths, of a model without values."""
        with torch.device("meta"):
            model = self.family.model(self.config)
        return [(path, module) for path, module in model.named_modules() if isinstance(module, kind)]

    def headless(self) -> bool:
        """Whether what it gives are vectors, and no logits of tokens."""
        return getattr(self.config, "heads", "") == "none"

    def layers(self) -> dict[str, dict[str, dict[int, str]]]:
        """The names of the layers' parameters, by stack, by what follows the number, and by number."""
        found: dict[str, dict[str, dict[int, str]]] = defaultdict(lambda: defaultdict(dict))
        for name in self.parameters:
            if match := LAYER.fullmatch(name):
                found[match[1]][match[3]][int(match[2])] = name
        return found


def read(path: Path, n_layers: int | None = None) -> Patient:
    """The checkpoint at `path`; of the first layers alone, where they are counted. Errors: MappingError."""
    if n_layers is not None:
        return _first_layers(path, n_layers)
    model = weight_mapping.load(path)
    family, config = family_of(model)
    return Patient(
        family=family, config=config, parameters={name: t.detach() for name, t in parameters_of(model).items()}
    )


def _first_layers(path: Path, n_layers: int) -> Patient:
    """Reads nothing of the other layers."""
    checkpoint = open_checkpoint(path)
    family, config = read_config(checkpoint)
    layout = layout_of(checkpoint, family, config)
    few: Any = config
    few = replace(few, n_layers=min(n_layers, few.n_layers))
    plan = plan_for(family, few, layout).spelled_as(checkpoint.keys())
    headers = {name: checkpoint.header(name) for name in checkpoint if name in {**plan.sources, **plan.copies}}
    plan.check(headers, widen=True)
    parameters = plan.carry({name: checkpoint[name] for name in headers})
    return Patient(family=family, config=few, parameters={name: t.contiguous() for name, t in parameters.items()})
