"""The one place that says in which precision a step runs."""

import torch
from torch import Tensor


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for float16 and bfloat16; float32 and float64 stay what they are."""
    return torch.promote_types(dtype, torch.float32)


def widen(x: Tensor) -> Tensor:
    """`x` in float32 or better, for steps that half precision would spoil: mean squares, exponentials, angles."""
    return x.to(wide_dtype(x.dtype))
