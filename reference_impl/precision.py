"""The one place that says in which precision a step runs."""

import torch
from torch import Tensor, nn

HALF = (torch.bfloat16, torch.float16)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for float16 and bfloat16; float32 and float64 stay what they are."""
    return torch.promote_types(dtype, torch.float32)


def widen(x: Tensor) -> Tensor:
    """`x` in float32 or better, for steps that half precision would spoil: mean squares, exponentials, angles."""
    return x.to(wide_dtype(x.dtype))


def kept_wide(model: nn.Module, dtype: torch.dtype) -> set[str]:
    """The parameters and buffers that stay in float32 when a model is cast to `dtype`: what its modules list in `wide`, by
    dtype, for they decide more than they compute.
    """
    named = ((f"{path}.", getattr(module, "wide", {})) for path, module in model.named_modules())
    return {path + name for path, wide in named for name in wide.get(dtype, ())}
