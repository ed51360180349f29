"""Which key a query may look at, as booleans built from positions."""

from jaxtyping import Bool, Int
from torch import Tensor


def causal_mask(query_slots: Int[Tensor, " s"], key_slots: Int[Tensor, " t"]) -> Bool[Tensor, "1 1 s t"]:
    """CausalMask: a query sees its own slot and those before it. Seed 1, "MHA"."""
    return (key_slots[None, :] <= query_slots[:, None])[None, None]


def padding_mask(real: Bool[Tensor, "b t"]) -> Bool[Tensor, "b 1 1 t"]:
    """PaddingMask: no query sees a key that is padding. Seed 1, "CrossAttention"."""
    return real[:, None, None, :]
