"""The float64 lens: transformers' own, unmodified code, run in float64 throughout.

transformers hard-codes float32 in its norms, softmax, routers and rotary tables, so a model in float64 agrees with the
truth to 1e-6 only. Under the lens every explicit request for float32 becomes one for float64, and what is left between two
implementations is either the last bits of float64 or a difference in the mathematics.
"""

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_OLD_NAMES = ("torch.FloatTensor", "torch.cuda.FloatTensor")
_SAYS_A_DTYPE = frozenset({torch.dtype, str, type(torch.FloatTensor)})


def _is_float32(value: Any) -> bool:
    return value is torch.float32 or value is torch.FloatTensor or (type(value) is str and value in _OLD_NAMES)


class Lens(TorchFunctionMode):
    """`with Lens(): model(...)`: explicit float32 becomes float64, in methods, in arguments and in creation.

    Build and load the model outside, then `.double()` it: tables made at construction keep the float32 values they have in
    the library. A path that asks whether a tensor *is* float32 is not covered.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        __tracebackhide__ = True  # what fails in an operation is whose called it
        if func is Tensor.float:
            func = Tensor.double
        if not _SAYS_A_DTYPE.isdisjoint(map(type, args)):  # asked of every operation, so it has to be quick
            args = [torch.float64 if _is_float32(arg) else arg for arg in args]
        if func is torch.tensor and not (kwargs and kwargs.get("dtype")):  # of Python's floats, which it rounds unasked
            made = func(*args, **(kwargs or {}))
            return func(*args, **(kwargs or {}) | {"dtype": torch.float64}) if made.dtype == torch.float32 else made
        if not kwargs:
            return func(*args)
        if not _SAYS_A_DTYPE.isdisjoint(map(type, kwargs.values())):
            kwargs = {name: torch.float64 if _is_float32(value) else value for name, value in kwargs.items()}
        return func(*args, **kwargs)


def _is_mask(x: Tensor) -> bool:
    """Whether it holds nothing that float32 could have rounded: what masks are made of, added or multiplied."""
    return bool(torch.isin(x, x.new_tensor([0.0, 1.0, torch.finfo(x.dtype).min, -torch.inf])).all())


class Leaks(TorchDispatchMode):
    """Counts, by operator, the float32 tensors that are made while it is on, but for masks: what the lens did not see."""

    def __init__(self) -> None:
        super().__init__()
        self.made: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        __tracebackhide__ = True
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else (out,):
            if isinstance(value, Tensor) and value.dtype == torch.float32 and not _is_mask(value):
                self.made[str(func)] += 1
        return out
