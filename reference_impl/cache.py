"""The KV cache: what a decoder keeps of the tokens it has read. Seed 2, 3.1."""

import torch
from jaxtyping import Float
from torch import Tensor


class LayerCache:
    """Keys (already rotated) and values of one layer, one entry a key/value head."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens held, padding included."""
        return 0 if self.keys is None else self.keys.shape[-2]

    def held(self) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens. Errors: ValueError when nothing was appended yet."""
        if self.keys is None or self.values is None:
            raise ValueError("the cache of this layer is empty: run the model on it first")
        return self.keys, self.values

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
    """One `LayerCache` a layer."""

    def __init__(self, n_layers: int):
        self.layers = [LayerCache() for _ in range(n_layers)]

    @property
    def length(self) -> int:
        """Tokens held, padding included."""
        return self.layers[0].length
