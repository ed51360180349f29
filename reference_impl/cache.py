"""The KV cache: what a decoder keeps of the tokens it has read. Seed 2, 3.1."""

import torch
from jaxtyping import Float
from torch import Tensor


class LayerCache:
    """Keys (already rotated) and values of one layer, one entry a key/value head.

    memory: those of an encoder's output, for a layer that attends to one: computed once, and read at every step.
    """

    def __init__(self, memory: "LayerCache | None" = None) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.memory = memory

    @property
    def length(self) -> int:
        """Tokens held, padding included."""
        return 0 if self.keys is None else self.keys.shape[-2]

    def held(self) -> tuple[Tensor, ...]:
        """Keys and values of all tokens, then those of the memory. Errors: ValueError when nothing was appended yet."""
        if self.keys is None or self.values is None:
            raise ValueError("the cache of this layer is empty: run the model on it first")
        return self.keys, self.values, *(self.memory.held() if self.memory is not None else ())

    def append(
        self, keys: Float[Tensor, "b g s e"], values: Float[Tensor, "b g s e2"]
    ) -> tuple[Float[Tensor, "b g t e"], Float[Tensor, "b g t e2"]]:
        """Add the new tokens behind the old ones; return all. Held as copies, not as views of what a layer computed."""
        if self.keys is None or self.values is None:
            self.keys, self.values = keys.contiguous(), values.contiguous()
        else:
            self.keys, self.values = torch.cat([self.keys, keys], -2), torch.cat([self.values, values], -2)
        return self.keys, self.values


class KVCache:
    """One `LayerCache` a layer; `cross`: with room for an encoder's output.

    memory: that output itself, once a model that has an encoder has made it.
    """

    def __init__(self, n_layers: int, *, cross: bool = False):
        self.layers = [LayerCache(LayerCache() if cross else None) for _ in range(n_layers)]
        self.memory: Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens held, padding included."""
        return self.layers[0].length
