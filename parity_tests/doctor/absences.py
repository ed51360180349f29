"""Where damage lies that no repair undoes: a block without which a model reads better does harm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from parity_tests.doctor.patient import Patient
from parity_tests.doctor.repair import Absence

LAST = ("o_proj", "down_proj", "out_proj", "v_proj")
"""The projections that a block ends in: of attention and of feed-forward networks, and of RWKV's mixers."""


def repairs(patient: Patient) -> Iterator[Absence]:
    """Each block of each layer left out: the last matrix of it, and its bias, are zero."""
    for stack, suffixes in patient.layers().items():
        blocks: dict[str, list[str]] = {}
        for suffix in suffixes:
            block, _, projection = suffix.removesuffix(".weight").rpartition(".")
            if suffix.endswith(".weight") and projection in LAST:
                blocks.setdefault(block, []).append(projection)
        for block, projections in blocks.items():
            last = min(projections, key=LAST.index)
            for layer in suffixes[f"{block}.{last}.weight"]:
                yield _absence(f"{stack}{layer}.{block}", last)


def _absence(path: str, last: str) -> Absence:
    names = [f"{path}.{last}.{part}" for part in ("weight", "bias")]

    def emptied(patient: Patient) -> Mapping[str, Tensor]:
        return {name: torch.zeros_like(patient.parameters[name]) for name in names if name in patient.parameters}

    so = f"what this file holds of {path} does harm, in a way that is not known here"
    return Absence(name=path, so=so, apply=lambda patient: patient.with_parameters(emptied(patient)))
