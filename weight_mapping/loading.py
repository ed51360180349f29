"""A model of the reference from a checkpoint alone."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from reference_impl.decoder import Decoder
from weight_mapping.checkpoint import Checkpoint, open_checkpoint
from weight_mapping.config import read_config, spell
from weight_mapping.errors import MappingError
from weight_mapping.families import FAMILIES
from weight_mapping.family import C, Family, ReferenceConfig
from weight_mapping.plan import Plan, plan


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint must give a model, by name: parameters and buffers. What is tied is given once."""
    state, first = model.state_dict(keep_vars=True), _first_names(model)
    return {name: state[name] for name in dict.fromkeys(first.values())}


def _first_names(model: nn.Module) -> dict[str, str]:
    """Each name in a model's state to the first name of its tensor: itself, unless it is tied."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(t), name) for name, t in model.state_dict(keep_vars=True).items()}


def family_of(model: nn.Module) -> tuple[Family, ReferenceConfig]:
    """A model's family and config. Raises MappingError when no family here has such a model."""
    for family in FAMILIES:
        if isinstance(model.config, family.config):
            return family, model.config
    raise MappingError(f"{type(model).__name__} is no model of a family that can be mapped")


def plan_for(family: Family[C], config: C, layout: str) -> Plan:
    """How the layout's tensors and the parameters of the model with this config go into each other."""
    with torch.device("meta"):
        model = family.model(config)
    return plan(family.layouts[layout].table(config), parameters_of(model))


def load(path: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> Decoder:
    """The reference's model with the weights and the config of the checkpoint at `path`, ready to evaluate.

    dtype: cast floats to it; without, each is what the file holds (GGUF: float32, see `GGUFFile`).
    Raises MappingError when a tensor is missing, unexpected or of another shape or kind than the config asks for, when
    the config has a key that is not understood, or when a file is damaged.
    """
    checkpoint = open_checkpoint(path)
    family, config = read_config(checkpoint)
    parameters = _map(checkpoint, family, config)
    with torch.device("meta"):
        model = family.model(config)
    own = {name: t.to(device=device, dtype=dtype).contiguous() for name, t in parameters.items()}
    for name, slot in parameters_of(model).items():
        if isinstance(slot, nn.Parameter):
            own[name] = nn.Parameter(own[name])  # made here, so that what is tied gets one and the same
    model.load_state_dict({name: own[first] for name, first in _first_names(model).items()}, assign=True)
    return model.eval()


def _map(checkpoint: Checkpoint, family: Family[C], config: C) -> Mapping[str, Tensor]:
    """The checkpoint's tensors as parameters. All headers are checked before any data is read."""
    try:
        mapping = plan_for(family, config, checkpoint.layout)
        mapping.check({name: checkpoint.header(name) for name in checkpoint})
        return mapping.forward(checkpoint)
    except MappingError as error:
        if error.tensor is None or str(checkpoint.path) in str(error):
            raise
        blame = " and ".join(_blame(checkpoint, family, config, error.tensor))
        asks = f"; {checkpoint.config_file.name} says {blame}" if blame else ""
        raise type(error)(f"{checkpoint.file(error.tensor)}: {error}{asks}", tensor=error.tensor) from None


def _blame(checkpoint: Checkpoint, family: Family[C], config: C, tensor: str) -> list[str]:
    """The keys that decide whether a tensor is there, or how long its wrong axes are: found by changing each."""

    def expected(config: C) -> torch.Size | None:
        empty = plan_for(family, config, checkpoint.layout).sources.get(tensor)
        return None if empty is None else empty.shape

    def matters(before: torch.Size | None, after: torch.Size | None) -> bool:
        if before is None or after is None:
            return before is not after
        found = checkpoint.shape(tensor) if tensor in checkpoint else before
        return any(b not in (a, f) for b, a, f in zip(before, after, found, strict=False))

    layout = family.layouts[checkpoint.layout]
    keys = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        others = [not value] if type(value) is bool else [8 * value, value // 2] if type(value) is int else []
        changed = [dataclasses.replace(config, **{field.name: other}) for other in others if other or other is False]
        valid = [c for c in changed if all(check.holds(c) for check in family.checks)]
        if any(matters(expected(config), expected(c)) for c in valid):
            keys[field.name] = spell(layout, config, field.name)
    return [key for key in keys.values() if key]
