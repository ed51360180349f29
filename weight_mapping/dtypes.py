"""In which dtype a checkpoint runs that nobody gives one: the one of its tensors, or the one that its config names."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from reference_impl.precision import kept_wide
from weight_mapping.container import Checkpoint, Value
from weight_mapping.errors import MappingError, named, shown
from weight_mapping.plan import Plan

RUN_IN = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""The dtypes that a model runs in, as configs call them."""


def one_dtype(mapping: Plan, headers: Mapping[str, Tensor], model: nn.Module) -> torch.dtype | None:
    """The dtype of a file's tensors, but for those in float32 that the model keeps so; None of a file that mixes dtypes."""
    held = [(headers[name].dtype, r.targets) for r in mapping.rules for name in r.sources if name in headers]
    for dtype in dict.fromkeys(found for found, _ in held):
        wide = kept_wide(model, dtype)
        if all(found == dtype or (found == torch.float32 and wide.issuperset(targets)) for found, targets in held):
            return dtype
    return None


def configs_dtype(checkpoint: Checkpoint, headers: Mapping[str, Tensor]) -> torch.dtype:
    """What a config says to run its checkpoint in. Raises MappingError when it names no one dtype for that."""
    said = {key: checkpoint.config.get(key) for key in ("dtype", "torch_dtype")}
    said = {key: value for key, value in said.items() if value not in (None, "auto")}
    found = {_named_by(value) for value in said.values()}
    if len(found) == 1 and (dtype := found.pop()):
        return dtype
    of = {tensor.dtype: name for name, tensor in headers.items() if tensor.is_floating_point()}
    mixed = " and ".join(f"{named(name)} in {dtype}" for dtype, name in list(of.items())[:2])
    says = " and ".join(f"{key} {shown(value)}" for key, value in said.items()) or "no dtype"
    why = f"mixes dtypes, {mixed}, and {checkpoint.config_file.name} says {says}"
    raise MappingError(f"{why}: pass the one to run it in, as dtype=torch.bfloat16", where=checkpoint.path)


def _named_by(value: Value) -> torch.dtype | None:
    return RUN_IN.get(value.removeprefix("torch.")) if isinstance(value, str) else None
