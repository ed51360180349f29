"""A case is one model in one setting. Its two sides are built here, once a process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import weight_mapping
from parity_tests.families import FAMILIES
from parity_tests.fixtures import tiny
from parity_tests.harness import hf
from parity_tests.harness.batches import Batch, Reads
from parity_tests.harness.compare import DTYPES
from parity_tests.harness.memory import once
from parity_tests.harness.record import Backend, Deviation, Family
from weight_mapping import open_checkpoint
from weight_mapping.config import read_config

TRAINED = "trained:"
"""Prefix of the variant that is a checkpoint on disk: `trained:/models/smollm2.gguf`."""


@dataclass(frozen=True)
class Case:
    """family-variant-precision-backend on a device; its text form is the beginning of a test id."""

    family: str
    variant: str
    precision: str
    backend: Backend
    device: str = "cpu"

    def __str__(self) -> str:
        return f"{self.family}-{self.name}-{self.precision}-{self.backend}"

    @property
    def setting(self) -> str:
        """The same for a person to read."""
        backend = f"attention={self.backend.attention}"
        backend += f" experts={self.backend.experts}" if self.backend.experts else ""
        return f"{self.family}/{self.name}  {self.precision}  {backend}  {self.device}"

    @property
    def trained(self) -> bool:
        """Whether this is a checkpoint somebody trained, and not a fixture."""
        return self.variant.startswith(TRAINED)

    @property
    def name(self) -> str:
        """The variant, or the trained checkpoint's folder, or its file without the ending."""
        return self.source.name.removesuffix(".gguf") if self.trained else self.variant

    @property
    def record(self) -> Family:
        return FAMILIES[self.family]

    @property
    def deviations(self) -> list[Deviation]:
        """Those that may explain a difference here: one that is live in other variants alone changes nothing, or a part that
        is not there. A trained model is of no variant.
        """
        return [each for each in self.record.deviations if self.trained or each.concerns(self.variant)]

    @property
    def hf_class(self) -> str:
        """transformers' class for it: the one that its config.json names; of a trained one, what it is by the reference's
        reading of its config, since files name none, or one that there is no more, or one of somebody's own.
        """
        if self.trained:
            family, config = read_config(open_checkpoint(self.source))
            return family.class_of(config)
        return self.record.variants[self.variant].get("architectures", [self.record.hf_class])[0]

    @property
    def source(self) -> Path:
        """The checkpoint of this case on disk."""
        if self.trained:
            return Path(self.variant.removeprefix(TRAINED))
        return tiny.path_of(self.family, self.variant)


@once
def _reference(case: Case) -> Any:
    model = weight_mapping.load(case.source, dtype=DTYPES[case.precision], device=case.device)
    return model.requires_grad_(False)


def reference(case: Case, precision: str | None = None) -> Any:
    """The reference of a case's checkpoint, loaded through the weight mapping, in the case's precision or another."""
    return _reference(replace(case, backend=Backend(""), precision=precision or case.precision))


@once
def twin(case: Case) -> Any:
    """transformers' model of a case. Errors: hf.Absent."""
    return hf.build(case.hf_class, case.source, case.precision, case.backend, case.device)


def reads(case: Case) -> Reads:
    """What the model of a case is given."""
    return case.record.reads(reference(case).config)


def batches_of(case: Case) -> list[Batch]:
    """What a case is run on: bare and padded; tiny models also far apart and long, where half precision adds nothing."""
    batches = reads(case).standard()
    if case.trained or case.precision in ("bf16", "f16"):
        batches = [batch for batch in batches if batch.name in ("plain", "padded")]
    return [batch.to(case.device) for batch in batches]


def cache_batches(case: Case, length: int | None = None) -> list[Batch]:
    """What it reads in pieces over a cache: so many tokens, or as many as fit every table."""
    given = reads(case)
    return [batch.to(case.device) for batch in (given.cached() if length is None else given.lasting(length))]
