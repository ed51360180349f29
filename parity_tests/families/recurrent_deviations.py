"""Departures of models that keep a state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from reference_impl.recurrence import LayerState


class _Forgetting(LayerState):
    """A state of which some parts begin anew at each call."""

    def __init__(self, names: tuple[str, ...], gone: tuple[str, ...]):
        super().__init__(names)
        self.gone = gone

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "parts":
            value = {key: x for key, x in value.items() if key not in getattr(self, "gone", ())}
        super().__setattr__(name, value)

    def held(self) -> tuple[Tensor, ...]:
        """Nothing in the place of what is gone."""
        return tuple(self.parts.get(name, torch.zeros(0)) for name in self.names)


def forgetting(names: tuple[str, ...], *gone: str) -> Callable[[Any], None]:
    """The layers' states, of parts by these names, lose some of them at each call."""

    def change(model: Any) -> None:
        new_cache = model.new_cache

        def emptied() -> Any:
            cache = new_cache()
            cache.layers[:] = [_Forgetting(names, gone) for _ in cache.layers]
            return cache

        model.new_cache = emptied

    return change
