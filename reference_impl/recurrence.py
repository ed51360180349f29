"""The cache of recurrent token mixers: a state of fixed size, however many tokens were read."""

from collections.abc import Mapping

from torch import Tensor


class LayerState:
    """The state of one layer: what a mixer wants to know at the next call, under the mixer's own names."""

    def __init__(self, names: tuple[str, ...]):
        self.names = names
        self.parts: dict[str, Tensor] = {}

    def held(self) -> tuple[Tensor, ...]:
        """The parts in the order of `names`. Errors: ValueError when nothing was read yet."""
        if missing := [name for name in self.names if name not in self.parts]:
            raise ValueError(f"the state of this layer has no {missing[0]}: run the model on it first")
        return tuple(self.parts[name] for name in self.names)


def recall(state: LayerState | None, empty: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """The parts that `empty` names: as they were kept, or as `empty` has them before the first token."""
    kept = {} if state is None else state.parts
    return tuple(kept.get(name, value) for name, value in empty.items())


class StateCache:
    """One `LayerState` a layer. length: tokens read, padding included; the model counts them."""

    def __init__(self, n_layers: int, names: tuple[str, ...]):
        self.layers = [LayerState(names) for _ in range(n_layers)]
        self.length = 0
