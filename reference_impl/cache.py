"""The KV cache: what a decoder keeps of the tokens it has read. R2, "3.1 训练和推理"."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


class LayerCache:
    """Keys (already rotated) and values of one layer, one entry a key/value head.

    memory: those of an encoder's output, for a layer that attends to one: computed once, and read at every step.
    window: how many tokens a query of this layer sees, its own included; those that no later query sees are not kept.
    """

    def __init__(self, memory: "LayerCache | None" = None, *, window: int | None = None) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.memory = memory
        self.window, self.forgotten = window, 0

    @property
    def length(self) -> int:
        """Tokens read, padding and forgotten ones included."""
        return self.forgotten + (0 if self.keys is None else self.keys.shape[-2])

    def held(self) -> tuple[Tensor, ...]:
        """Keys and values that are kept, then those of the memory. Errors: ValueError when nothing was appended yet."""
        if self.keys is None or self.values is None:
            raise ValueError("the cache of this layer is empty: run the model on it first")
        return self.keys, self.values, *(self.memory.held() if self.memory is not None else ())

    def append(
        self, keys: Float[Tensor, "b g s e"], values: Float[Tensor, "b g s e2"]
    ) -> tuple[Float[Tensor, "b g t e"], Float[Tensor, "b g t e2"]]:
        """Add the new tokens behind the old ones; return all. Held as copies, not as views of what a layer computed."""
        if self.keys is None or self.values is None:
            keys, values = keys.contiguous(), values.contiguous()
        else:
            keys, values = torch.cat([self.keys, keys], -2), torch.cat([self.values, values], -2)
        unseen = 0 if self.window is None else max(keys.shape[-2] - (self.window - 1), 0)  # by the next query
        self.keys, self.values = keys[..., unseen:, :].contiguous(), values[..., unseen:, :].contiguous()
        self.forgotten += unseen
        return keys, values


class KVCache:
    """One `LayerCache` a layer; `cross`: with room for an encoder's output.

    windows: by layer, see `LayerCache`. memory: that output itself, once a model that has an encoder has made it.
    """

    def __init__(self, n_layers: int, *, cross: bool = False, windows: Sequence[int | None] | None = None):
        windows = windows or [None] * n_layers
        self.layers = [LayerCache(LayerCache() if cross else None, window=window) for window in windows]
        self.memory: Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens read, padding included."""
        return self.layers[0].length
