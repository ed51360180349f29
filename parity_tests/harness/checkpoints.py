"""The checkpoints of the command line, and whether each can be verified: asked before anything is built of it, and answered in
one sentence. Imports no transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

import weight_mapping
from parity_tests.fixtures import real
from weight_mapping import MappingError, open_checkpoint
from weight_mapping.config import read_config
from weight_mapping.container import Checkpoint
from weight_mapping.loading import plan_for

REFUSED = pytest.StashKey[dict[Path, str]]()
"""Those that were asked for and cannot be verified, each with the sentence that says why."""


def asked_for(named: Sequence[Path] | None, trained: bool) -> list[Path]:
    """Those that were named, each once; without any, with --trained, those that were fetched and are not only run by name.
    Errors: FetchError when one of these is another than the table says.
    """
    if named:
        return list(dict.fromkeys(path.expanduser().absolute() for path in named))
    free = [name for name, checkpoint in real.CHECKPOINTS.items() if not checkpoint.opt_in] if trained else []
    return [path for path in map(real.path_of, free) if path is not None]


def refusals(paths: Iterable[Path]) -> dict[Path, str]:
    """Those of the checkpoints that cannot be verified, and why: what the mapping refuses, by config, headers or values, and
    what holds values that are not finite. Reads each file, and keeps nothing of it.
    """
    return {path: why for path in paths if (why := _refusal(path)) is not None}


def _refusal(path: Path) -> str | None:
    try:
        weight_mapping.load(path, device="meta")
        checkpoint = open_checkpoint(path)
        return _told(checkpoint, lambda x: ~x.isfinite(), "not finite", "nothing can be compared; take or make a sound file")
    except MappingError as error:
        return str(error)


@cache
def cannot_hold(path: Path, dtype: torch.dtype) -> str | None:
    """Which values of a sound checkpoint a precision makes infinite, in words; None where it holds all. What lies in a dtype
    that reaches no further is not read.
    """
    checkpoint, most = open_checkpoint(path), torch.finfo(dtype).max
    if all(torch.finfo(checkpoint.dtype(name)).max <= most for name in _floats(checkpoint)):
        return None
    beyond = f"beyond {dtype}".replace("torch.", "")
    return _told(checkpoint, lambda x: x.to(dtype).isinf(), beyond, "the file is sound, and this precision too narrow")


def _floats(checkpoint: Checkpoint) -> Iterator[str]:
    """The tensors that a model is made of."""
    family, config = read_config(checkpoint)
    dropped = plan_for(family, config, checkpoint.layout).spelled_as(checkpoint.keys()).dropped(checkpoint)
    yield from (name for name in checkpoint if name not in dropped and checkpoint.dtype(name).is_floating_point)


def _told(checkpoint: Checkpoint, wrong: Callable[[Tensor], Tensor], are: str, so: str) -> str | None:
    """The first tensor with such values: how many, and the first of them; and how many tensors have some."""
    first, others = "", 0
    for name in _floats(checkpoint):
        tensor = checkpoint[name]
        places = wrong(tensor)
        if n := int(places.sum()):
            others += bool(first)
            place = [int(i) for i in places.nonzero()[0]]
            what = f"{n} of its values are" if n > 1 else "one of its values is"
            value = float(tensor[tuple(place)])
            first = first or f"{checkpoint.file(name)}: in tensor {name!r} {what} {are}, {value:g} at {place} first"
    more = f" (in {others + 1} tensors)" if others else ""
    return f"{first}{more}; {so}" if first else None
