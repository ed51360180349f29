"""A model of the reference from a checkpoint alone."""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reference_impl.precision import kept_wide
from weight_mapping.checkpoint import open_checkpoint
from weight_mapping.config import read_config
from weight_mapping.container import Checkpoint
from weight_mapping.errors import MappingError, TensorError
from weight_mapping.families import FAMILIES
from weight_mapping.family import C, Family, Layout, ReferenceConfig
from weight_mapping.plan import Plan, longest_index, n_names, plan, source_of

FEW_NAMES = 100_000
"""So many are spelled out at once, whatever the file holds."""
MOST_TRIED = 15_000
"""Names of tensors spelled out to find the key at fault: a second."""


def parameters_of(model: nn.Module, *, buffers: bool = True) -> dict[str, Tensor]:
    """What a checkpoint must give a model, by name: parameters and buffers. What is tied is given once."""
    state, first = model.state_dict(keep_vars=True), _first_names(model)
    kept = {name: state[name] for name in dict.fromkeys(first.values())}
    return {name: t for name, t in kept.items() if buffers or isinstance(t, nn.Parameter)}


def _first_names(model: nn.Module) -> dict[str, str]:
    """Each name in a model's state to the first name of its tensor: itself, unless it is tied."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(t), name) for name, t in model.state_dict(keep_vars=True).items()}


def family_of(model: nn.Module) -> tuple[Family, ReferenceConfig]:
    """A model's family and config. Raises MappingError when no family here has such a model."""
    config: Any = vars(model).get("config")
    for family in FAMILIES.values():
        if isinstance(config, family.config):
            return family, config
    raise MappingError(f"{type(model).__name__} is no model of a family that can be mapped")


def plan_for(family: Family[C], config: C, layout: str, *, buffers: bool = True) -> Plan:
    """How the layout's tensors and the parameters of the model with this config go into each other.

    buffers: whether they are among them; gradients and the state of an optimizer have none.
    """
    return plan(family.tables[layout](config), parameters_of(_empty(family, config), buffers=buffers))


def _empty(family: Family[C], config: C) -> nn.Module:
    try:
        with torch.device("meta"):
            return family.model(config)
    except (RuntimeError, OverflowError) as error:  # on this device nothing else can go wrong
        sizes = {name: value for name, value in vars(config).items() if type(value) is int}
        largest = max(sizes, key=lambda name: sizes[name])
        why = f"no tensor can be so large as the sizes ask for, {largest} {sizes[largest]} above all"
        raise MappingError(f"{why}; correct the config") from error


def load(path: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> Any:
    """The reference's model with the weights and the config of the checkpoint at `path`, ready to evaluate.

    dtype: cast floats to it, but for what a model keeps in float32, as the routers of DeepSeek; without, each is what the
    file holds (GGUF: float32, see `GGUFFile`).
    Raises MappingError when a tensor is missing, unexpected or of another shape or kind than the config asks for, when
    the config has a key that is not understood, or when a file is damaged.
    """
    family, config, parameters = _read(path)
    model = _empty(family, config)
    wide = kept_wide(model, dtype) if dtype else set()
    casts = {name: torch.float32 if name in wide else dtype for name in parameters}
    own = {name: t.to(device=device, dtype=casts[name]).contiguous() for name, t in parameters.items()}
    for name, slot in parameters_of(model).items():
        if isinstance(slot, nn.Parameter):
            own[name] = nn.Parameter(own[name])  # made here, so that what is tied gets one and the same
    model.load_state_dict({name: own[first] for name, first in _first_names(model).items()}, assign=True)
    return model.eval()


def _read(path: str | Path, tries: int = 10) -> tuple[Family, Any, Mapping[str, Tensor]]:
    """The checkpoint at `path`: read anew where another was put in its place meanwhile, as `save` does."""
    before = _identity(path)
    try:
        checkpoint = open_checkpoint(path)
        family, config = read_config(checkpoint)
        return family, config, _map(checkpoint, family, config)
    except MappingError:
        if tries == 1 or _identity(path) == before:
            raise
        return _read(path, tries - 1)


def _identity(path: str | Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # ValueError: a null character in the name
        return None
    return found.st_dev, found.st_ino


def _map(checkpoint: Checkpoint, family: Family[C], config: C) -> Mapping[str, Tensor]:
    """The checkpoint's tensors as parameters. All headers are checked before any data is read."""
    n, index = longest_index(family.tables[checkpoint.layout](config))
    if n > len(checkpoint):  # damaged, and no reason to build what it asks for
        few = (
            f"asks for {n} times {index!r}, and there are only {len(checkpoint)} tensors; correct it or fetch it again"
        )
        raise MappingError(f"{checkpoint.config_file}: {few}")
    spelled_out = n_names(family.tables[checkpoint.layout](config))
    if spelled_out > max(10 * len(checkpoint), FEW_NAMES):
        few = f"asks for {spelled_out} tensors, and there are only {len(checkpoint)}; correct it or fetch it again"
        raise MappingError(f"{checkpoint.config_file}: {few}")
    try:
        mapping = plan_for(family, config, checkpoint.layout)
    except TensorError:
        raise
    except MappingError as error:
        raise MappingError(f"{checkpoint.config_file}: {error}") from error
    spelled = mapping.spelled_as(checkpoint.keys())
    try:
        spelled.check({name: checkpoint.header(name) for name in checkpoint})
        return spelled.carry(checkpoint)
    except TensorError as error:
        keys = " and ".join(_blame(checkpoint, family, config, error.tensor, mapping.own_name(error.tensor)))
        says = f"; {checkpoint.config_file.name} says {keys}" if keys else ""
        raise MappingError(f"{checkpoint.file(error.tensor)}: {error}{says}") from None


def _blame(checkpoint: Checkpoint, family: Family[C], config: C, tensor: str, own_name: str) -> Iterator[str]:
    """The keys that decide whether a tensor is there, or how long its wrong axes are: found by changing each.

    own_name: what the table calls the tensor.
    """

    def expected(config: C) -> torch.Size | None:
        table, parameters = family.tables[checkpoint.layout](config), parameters_of(_empty(family, config))
        empty = source_of(own_name, table, parameters)
        return None if empty is None else empty.shape

    asked = expected(config)
    found = checkpoint.shape(tensor) if tensor in checkpoint else None
    layout = family.layouts[checkpoint.layout]
    left = MOST_TRIED
    for field in dataclasses.fields(config):
        for changed in _neighbours(family, config, layout, field.name):
            left -= n_names(family.tables[checkpoint.layout](changed))
            if left < 0:
                return
            other = expected(changed)
            if asked is None or found is None:
                matters = (asked is None) != (other is None)
            else:
                matters = any(a not in (o, f) for a, o, f in zip(asked, other or asked, found, strict=False))
            if matters:
                yield f"{layout.spelled(field.name)} {json.dumps(getattr(config, field.name))}"
                break


def _neighbours(family: Family[C], config: C, layout: Layout[C], field: str) -> list[C]:
    """The config with a flag turned over, or a count much larger, smaller or null, as far as the family allows it."""
    value = getattr(config, field)
    nullable = any(key.field == field and key.kind.null for key in layout.keys.values())
    others = [not value] if type(value) is bool else [8 * value, value // 2] if type(value) is int else []
    others = [other for other in others if other is False or other > 0] + ([None if value else 8] if nullable else [])
    configs = [dataclasses.replace(config, **{field: other}) for other in others]
    return [c for c in configs if all(check.holds(vars(c)) for check in family.checks)]
