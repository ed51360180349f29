"""A model of the reference from a checkpoint alone."""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reference_impl.precision import kept_wide
from weight_mapping.checkpoint import open_checkpoint
from weight_mapping.config import read_config
from weight_mapping.container import Checkpoint
from weight_mapping.diagnosis import diagnose
from weight_mapping.dtypes import configs_dtype, one_dtype
from weight_mapping.errors import MappingError, TensorError, shown
from weight_mapping.families import FAMILIES
from weight_mapping.family import ALSO, C, Family, Layout, ReferenceConfig
from weight_mapping.patterns import found
from weight_mapping.plan import Plan, longest_index, n_names, plan, source_of
from weight_mapping.replacing import Place
from weight_mapping.rules import Table

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
    return plan(family.table(layout, config), parameters_of(_empty(family, config), buffers=buffers))


def _empty(family: Family[C], config: C) -> nn.Module:
    try:
        with torch.device("meta"):
            return family.model(config)
    except (RuntimeError, OverflowError, TypeError) as error:  # only sizes can be wrong here; past 64 bits TypeError
        sizes = {name: value for name, value in vars(config).items() if type(value) is int}
        largest = max(sizes, key=lambda name: sizes[name])
        why = f"no tensor can be so large as the sizes ask for, {largest} {sizes[largest]} above all"
        raise MappingError(f"{why}; correct the config") from error


def load(path: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> Any:
    """The reference's model with the weights and the config of the checkpoint at `path`, ready to evaluate.

    dtype: cast floats to it, but for what a model keeps in float32, as the routers of DeepSeek; without, each is what the
    file holds (GGUF: float32, see `GGUFFile`), and of a file that mixes dtypes, what its config.json says to run it in.
    Raises MappingError when a tensor is missing, unexpected or of another shape or kind than the config asks for, when
    the config has a key that is not understood, when a file is damaged, or when dtypes are mixed and nothing says more.
    """
    for last in (*9 * [False], True):
        place = Place(path)
        try:
            return _load(path, dtype, device)
        except MappingError:  # read anew where another was put in its place meanwhile, as `save` does
            if last or place.unchanged():
                raise
    raise AssertionError


def _load(path: str | Path, dtype: torch.dtype | None, device: torch.device | str) -> Any:
    checkpoint = open_checkpoint(path)
    family, config = read_config(checkpoint)
    mapping = _mapping(checkpoint, family, config)  # which is small for a file that asks for too much
    model = _empty(family, config)
    headers = {name: checkpoint.header(name) for name in checkpoint}
    with _explaining(checkpoint, family, config):
        mapping.check(headers, widen=True)  # all headers before any data
        one = one_dtype(mapping, headers, model)
        if one is None and dtype is None:
            dtype = configs_dtype(checkpoint, headers)
        parameters = mapping.carry(checkpoint, dtype=dtype or one)
    wide = kept_wide(model, dtype) if dtype else set()
    casts = {name: torch.float32 if name in wide else dtype for name in parameters}
    return _filled(model, {name: t.to(device=device, dtype=casts[name]).contiguous() for name, t in parameters.items()})


def assembled(family: Family[C], config: C, parameters: Mapping[str, Tensor]) -> Any:
    """The model of a config with these parameters and buffers, ready to evaluate; it shares their memory.

    Raises MappingError when no model can have the config's sizes, and RuntimeError when the parameters are not its own.
    """
    return _filled(_empty(family, config), parameters)


def _filled(model: nn.Module, parameters: Mapping[str, Tensor]) -> Any:
    """`model` with values in place of its empty tensors; what is tied is given once."""
    own = dict(parameters)
    for name, slot in parameters_of(model).items():
        if isinstance(slot, nn.Parameter):
            own[name] = nn.Parameter(own[name])  # made here, so that what is tied gets one and the same
    model.load_state_dict({name: own[first] for name, first in _first_names(model).items()}, assign=True)
    return model.eval()


def layout_of(checkpoint: Checkpoint, family: Family[C], config: C) -> str:
    """The layout that a checkpoint's names are of: its container's own, unless it has names that only another one has."""

    def patterns(table: Table) -> set[str]:
        return {name for rule in table.rules for source in rule.sources for name in table.spellings(source)}

    own = patterns(family.table(checkpoint.layout, config))
    for other in ALSO.get(checkpoint.layout, ()):
        table = family.table(other, config)
        if any(True for pattern in patterns(table) - own for _ in found(pattern, table.index, checkpoint)):
            return other
    return checkpoint.layout


def _mapping(checkpoint: Checkpoint, family: Family[C], config: C) -> Plan:
    """The plan for a checkpoint, in its layout and its spelling of the names."""
    layout = layout_of(checkpoint, family, config)
    n, index = longest_index(family.table(layout, config))
    if n > len(checkpoint):  # damaged, and no reason to build what it asks for
        few = (
            f"asks for {n} times {index!r}, and there are only {len(checkpoint)} tensors; correct it or fetch it again"
        )
        raise MappingError(few, where=checkpoint.config_file)
    names = n_names(family.table(layout, config))
    if names > max(10 * len(checkpoint), FEW_NAMES):
        few = f"asks for {names} tensors, and there are only {len(checkpoint)}; correct it or fetch it again"
        raise MappingError(few, where=checkpoint.config_file)
    try:
        return plan_for(family, config, layout).spelled_as(checkpoint.keys())
    except TensorError:
        raise
    except MappingError as error:  # of sizes that no tensor can have
        raise MappingError(error, where=checkpoint.config_file) from error


@contextmanager
def _explaining(checkpoint: Checkpoint, family: Family[C], config: C) -> Iterator[None]:
    """Say of a tensor that does not fit which file it is in, and why, as far as that can be told."""
    try:
        yield
    except TensorError as error:
        raise MappingError(_explained(checkpoint, family, config, error), where=checkpoint.file(error.tensor)) from None


def _explained(checkpoint: Checkpoint, family: Family[C], config: C, error: TensorError) -> str:
    """What is wrong, with the reason as far as it can be told: the file's names, or keys of its config."""
    layout = layout_of(checkpoint, family, config)
    mapping = plan_for(family, config, layout)
    spelled = mapping.spelled_as(checkpoint.keys())
    lacks, surplus = error.tensor not in checkpoint, error.tensor not in {**spelled.sources, **spelled.copies}
    if lacks or surplus:
        told = diagnose(error.tensor, checkpoint.keys(), checkpoint.shape, mapping.every_name(), spelled)
        if told is not None:
            return told
    own_name = mapping.own_name(error.tensor)
    keys = " and ".join(_blame(checkpoint, family, config, layout, error.tensor, own_name))
    says = f"; {checkpoint.config_file.name} says {keys}" if keys else ""
    head = lacks and family.trunk and not own_name.startswith(family.trunk) and checkpoint.layout != "gguf"
    alone = "; the file is of a trunk without its head, which would be random: save the whole model" if head else ""
    return f"{error}{says}{alone}"


def _blame(
    checkpoint: Checkpoint, family: Family[C], config: C, layout_name: str, tensor: str, own_name: str
) -> Iterator[str]:
    """The keys that decide whether a tensor is there, or how long its wrong axes are: found by changing each.

    layout_name: of its names. own_name: what the table calls the tensor.
    """

    def expected(config: C) -> torch.Size | None:
        table, parameters = family.table(layout_name, config), parameters_of(_empty(family, config))
        empty = source_of(own_name, table, parameters)
        return None if empty is None else empty.shape

    asked = expected(config)
    found = checkpoint.shape(tensor) if tensor in checkpoint else None
    layout = family.layouts[checkpoint.layout]
    left = MOST_TRIED
    for field in dataclasses.fields(config):
        for changed in _neighbours(family, config, layout, field.name):
            left -= n_names(family.table(layout_name, changed))
            if left < 0:
                return
            other = expected(changed)
            if asked is None or found is None:
                matters = (asked is None) != (other is None)
            else:
                matters = any(a not in (o, f) for a, o, f in zip(asked, other or asked, found, strict=False))
            if matters:
                yield f"{layout.spelled(field.name)} {shown(getattr(config, field.name))}"
                break


def _neighbours(family: Family[C], config: C, layout: Layout[C], field: str) -> list[C]:
    """The config with a flag turned over, or a count much larger, smaller or null, as far as the family allows it."""
    value = getattr(config, field)
    nullable = any(key.field == field and key.kind.null for key in layout.keys.values())
    others = [not value] if type(value) is bool else [8 * value, value // 2] if type(value) is int else []
    others = [other for other in others if other is False or other > 0] + ([None if value else 8] if nullable else [])
    configs = [dataclasses.replace(config, **{field: other}) for other in others]
    return [c for c in configs if all(check.holds(vars(c)) for check in family.checks)]
