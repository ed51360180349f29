"""The reference's side: building it, tracing it, and feeding a part of it with what transformers' part received."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from parity_tests.harness.batches import Batch
from parity_tests.harness.record import Call, Unit


@contextmanager
def watching(root: nn.Module, names: Mapping[str, str]) -> Iterator[dict[str, Tensor]]:
    """Keep the outputs of the modules at `names` (name -> path under `root`) while the body runs."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                seen[name] = output.detach()

        return hook

    handles = [root.get_submodule(path).register_forward_hook(keep(name)) for name, path in names.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _paths(unit: Unit) -> dict[str, str]:
    return {unit.site_name(site): site.name for site in unit.sites}


def trace(model: Any, batch: Batch, units: list[Unit]) -> dict[str, Tensor]:
    """Run a batch once through the whole reference; the value of every site, and each unit's first input as `name:in`."""
    names = {name: ".".join(p for p in (unit.name, path) if p) for unit in units for name, path in _paths(unit).items()}
    inputs: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        return lambda module, args: inputs.update({f"{name}:in": args[0].detach()})

    fed = [unit.name for unit in units if unit.feed is not None]
    handles = [model.get_submodule(name).register_forward_pre_hook(keep(name)) for name in fed]
    try:
        with torch.no_grad(), watching(model, names) as seen:
            model(batch.ids, positions=batch.positions, real=batch.real, cache=model.new_cache())
    finally:
        for handle in handles:
            handle.remove()
    return seen | inputs


def isolated(model: nn.Module, unit: Unit, call: Call, seen: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Call one reference module with the input that its twin received, in `dtype`; the value of each of its sites."""
    assert unit.feed is not None
    arguments = _cast(unit.feed(call, seen), dtype)
    module = model.get_submodule(unit.name)
    with torch.no_grad(), watching(module, _paths(unit)) as out:
        module(*arguments)
    return out


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.to(dtype)
    if isinstance(value, torch.dtype):
        return dtype
    if isinstance(value, tuple):
        return tuple(_cast(v, dtype) for v in value)
    return value
