"""Whose fault an exception is: transformers', ours, or the machine's. Only the first is something to report of transformers."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from traceback import walk_tb
from types import FrameType

import torch
import transformers

THEIRS = Path(transformers.__file__).parent
CHECKOUT = Path(__file__).parents[2]
OURS = tuple(CHECKOUT / part for part in ("reference_impl", "weight_mapping", "parity_tests/harness", "parity_tests/families"))
"""Where our code lies. Tests are left out: what one plants into transformers is transformers' there."""

DEVICE = ("cuda error", "device-side assert", "cublas_status", "cudnn_status", "cusolver_status", "hip error", "nccl error")
"""What torch's errors say when a device has failed: all that comes after in this process fails as well."""

MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")


class Whose(Enum):
    """To whom an exception is charged."""

    THEIRS = "transformers"
    OURS = "this project"
    MACHINE = "the machine"


def whose(error: BaseException) -> Whose:
    """The machine's when memory ran out or a device failed; else of whose code the innermost frame is. An exception that
    passed through neither is ours: nobody but us called.
    """
    if machine(error) is not None:
        return Whose.MACHINE
    frames = [frame for frame, _ in walk_tb(error.__traceback__) if not hands_on(frame)]
    for frame in reversed(frames):
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(THEIRS):
            return Whose.THEIRS
        if any(file.is_relative_to(part) for part in OURS):
            return Whose.OURS
    return Whose.OURS


def hands_on(frame: FrameType) -> bool:
    """Whether a function only hands a call on, as the lens does with each operation. Such ones say so as to pytest."""
    return bool(frame.f_locals.get("__tracebackhide__", False))


def machine(error: BaseException) -> str | None:
    """What the machine lacks or what broke, and what to do, in words; None when it is not the machine's fault. Looks at what
    an exception was raised from, too.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if found := _machine(cause):
            return found
        cause = cause.__cause__ or cause.__context__
    return None


def _machine(error: BaseException) -> str | None:
    line = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    says = line if len(line) <= 160 else f"{line[:80]} … {line[-76:]}"
    told = str(error).lower() if isinstance(error, RuntimeError) else ""
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in told for words in MEMORY):
        return f"out of memory ({says}); ask for fewer precisions (--precision), fewer processes (-n) or another --device"
    if any(words in told for words in DEVICE):
        return f"the device failed ({says}); run this case by itself with CUDA_LAUNCH_BLOCKING=1, or with --device cpu"
    return None
