"""Which key a query may look at, as booleans built from positions."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def causal_mask(query_slots: Int[Tensor, " s"], key_slots: Int[Tensor, " t"]) -> Bool[Tensor, "1 1 s t"]:
    """CausalMask: a query sees its own slot and those before it. R1, "MHA"."""
    return (key_slots[None, :] <= query_slots[:, None])[None, None]


def window_mask(query_slots: Int[Tensor, " s"], key_slots: Int[Tensor, " t"], window: int) -> Bool[Tensor, "1 1 s t"]:
    """What SlidingWindowMask adds to CausalMask: no query sees more than `window` slots, its own included. R1,
    "Qwen3Attention".
    """
    return (key_slots[None, :] > query_slots[:, None] - window)[None, None]


def padding_mask(real: Bool[Tensor, "b t"]) -> Bool[Tensor, "b 1 1 t"]:
    """PaddingMask: no query sees a key that is padding. R1, "CrossAttention"."""
    return real[:, None, None, :]


def padding_mask_or_all(
    real: Bool[Tensor, "b t"] | None, rows: int, length: int, device: torch.device
) -> Bool[Tensor, "b 1 1 t"]:
    """PaddingMask; everything is visible where nothing is told."""
    return padding_mask(torch.ones(rows, length, dtype=torch.bool, device=device) if real is None else real)


def wait_k_mask(query_slots: Int[Tensor, " s"], key_slots: Int[Tensor, " m"], k: int) -> Bool[Tensor, "1 1 s m"]:
    """A staircase for a memory that comes while the target is written: target i sees the first k + i of it, and all of
    it once that many have come. R1, "CrossAttention"; Ma et al. 2019. Errors: ValueError unless k is 1 or more.
    """
    if k < 1:
        raise ValueError(f"wait-k with k = {k}: the first target would see nothing")
    return (key_slots[None, :] < query_slots[:, None] + k)[None, None]
