"""The reference's side: building it, tracing it, and feeding a part of it with what transformers' part received."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from parity_tests.harness.batches import Batch
from parity_tests.harness.record import Call, Unit

Watch = tuple[str, Callable[[Any, Any], Tensor]]
"""The path of a module, and how to read a value from it and its output."""


@contextmanager
def watching(root: nn.Module, names: Mapping[str, Watch]) -> Iterator[dict[str, Tensor]]:
    """Keep the values at `names` while the body runs."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, read: Callable[[Any, Any], Tensor]) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            seen[name] = read(module, output).detach()

        return hook

    handles = [root.get_submodule(path).register_forward_hook(keep(name, read)) for name, (path, read) in names.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def forced(model: nn.Module, routes: Mapping[str, Tensor]) -> Iterator[None]:
    """Let the routers at these paths take these experts (n, k) instead of their own choice."""
    routers: list[Any] = [model.get_submodule(name) for name in routes]
    for router, choice in zip(routers, routes.values(), strict=True):
        router.forced = choice
    try:
        yield
    finally:
        for router in routers:
            router.forced = None


def _itself(module: nn.Module, output: Tensor) -> Tensor:
    return output


def _watched(unit: Unit, root: str = "") -> dict[str, Watch]:
    """Where the values of a unit's sites are, under `root`; and what its router decides by, where it has one."""

    def at(path: str) -> str:
        return ".".join(part for part in (root, path) if part)

    found: dict[str, Watch] = {unit.site_name(s): (at("" if s.mine else s.name), s.mine or _itself) for s in unit.sites}
    return found | ({f"{unit.name}.biased": (at("biased"), _itself)} if unit.routes else {})


def new_cache(model: Any) -> Any:
    """An empty cache; None for a model that keeps nothing."""
    return model.new_cache() if hasattr(model, "new_cache") else None


def read(model: Any, inputs: Mapping[str, Tensor], cache: Any = None) -> Tensor:
    """The reference's output: logits, mostly."""
    given = cast(model, inputs)
    return model(**given) if cache is None else model(**given, cache=cache)


def cast(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """A batch's inputs, those that are floats in the model's dtype."""
    return {name: x.to(_dtype(model)) if x.is_floating_point() else x for name, x in inputs.items()}


def _dtype(model: nn.Module) -> torch.dtype:
    return next(model.parameters()).dtype


def trace(model: Any, batch: Batch, units: list[Unit]) -> dict[str, Tensor]:
    """Run a batch once through the whole reference; the value of every site, and each unit's first input as `name:in`."""
    names = {name: watch for unit in units for name, watch in _watched(unit, unit.name).items()}
    inputs: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        return lambda module, args: inputs.update({f"{name}:in": args[0].detach()})

    fed = [unit.name for unit in units if unit.feed is not None]
    handles = [model.get_submodule(name).register_forward_pre_hook(keep(name)) for name in fed]
    try:
        with torch.no_grad(), watching(model, names) as seen:
            read(model, batch.inputs, new_cache(model))
    finally:
        for handle in handles:
            handle.remove()
    return seen | inputs


def isolated(model: nn.Module, unit: Unit, call: Call, seen: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Call one reference module with the input that its twin received, in `dtype`; the value of each of its sites."""
    assert unit.feed is not None
    given = unit.feed(call, seen)
    args, kwargs = given.args, given.kwargs
    if dtype == torch.float64:
        args, kwargs = _widened(args), _widened(kwargs)
    module = model.get_submodule(unit.name)
    with torch.no_grad(), watching(module, _watched(unit)) as out:
        module(*args, **kwargs)
    return out


def _widened(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.double()
    if isinstance(value, torch.dtype):
        return torch.float64
    if isinstance(value, dict):
        return {name: _widened(v) for name, v in value.items()}
    return tuple(_widened(v) for v in value) if isinstance(value, tuple) else value
