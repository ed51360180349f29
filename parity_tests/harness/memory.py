"""Nothing is computed twice in one process: models by their case, results by the model that gave them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from torch import nn

T = TypeVar("T")


class Trainable(Hashable, Protocol):
    """A key that knows whether what it stands for is large."""

    @property
    def trained(self) -> bool: ...


K = TypeVar("K", bound=Trainable)


def once(make: Callable[[K], T]) -> Callable[[K], T]:
    """Keep what was made for a case: of every tiny model, and of the trained ones, which are large, the latest. What could not
    be made fails the same way again.
    """
    kept: dict[K, T] = {}
    failed: dict[K, Exception] = {}

    @wraps(make)
    def get(case: K) -> T:
        if case in failed:
            raise failed[case].with_traceback(None)
        if case not in kept:
            if case.trained:
                for other in [earlier for earlier in kept if earlier.trained]:
                    del kept[other]
            try:
                kept[case] = make(case)
            except Exception as error:
                failed[case] = error
                raise
        return kept[case]

    return get


_given: WeakKeyDictionary[nn.Module, dict[Hashable, Any]] = WeakKeyDictionary()


def of_model(model: nn.Module, key: Hashable, make: Callable[[], T]) -> T:
    """What `make` gave for this model under this key, made once and kept as long as the model."""
    results = _given.setdefault(model, {})
    if key not in results:
        results[key] = make()
    return results[key]


def forget(model: nn.Module) -> None:
    """Let go of what was kept for a model, which is about to give something else."""
    _given.pop(model, None)
