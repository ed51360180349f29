"""Which fields of transformers' configs the fixtures vary, and why the others need not be."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import transformers
from rich.console import Console
from rich.table import Table

from parity_tests.families import FAMILIES
from parity_tests.harness import hf, settings
from parity_tests.harness.initial import SAID
from parity_tests.harness.record import Family

REFUSED: Mapping[str, Any] = {
    "pruned_heads": {"0": [0]},
    "cross_attention_hidden_size": 12,
    "tie_encoder_decoder": True,
}
"""Fields that change what a model is, or what joins two models, each at a value that does."""

INERT = {
    "who wrote the file, and how it is stored": "_name_or_path architectures model_type transformers_version *dtype prefix",
    "tokens, which the caller passes": "*_token_id tokenizer_class",
    "what a call returns": "use_cache output_* return_dict*",
    "heads of other tasks, and their labels": "id2label label2id problem_type finetuning_task task_specific_params "
    "classifier_dropout summary_*",
    "what parameters begin as, which test_initialisation compares": " ".join(key for said in SAID.values() for key in said),
    "the same numbers in pieces, which test_flags compares where anything reads it": "chunk_size_feed_forward",
    "the same numbers in another way: recomputed, or traced": "gradient_checkpointing torchscript",
    "nothing of PyTorch reads it": "tf_legacy_loss use_bfloat16",
    "the mapping refuses it": " ".join(REFUSED),
    "fixed by the architecture, and refused where it is another": "is_encoder_decoder add_cross_attention is_decoder",
}
"""Of every family, by the reason: fields that change no number of a forward."""


@dataclass(frozen=True)
class Field:
    """A field of a config class. variants: those that vary it. reason: why none has to; "" when none is known."""

    name: str
    variants: tuple[str, ...]
    reason: str

    @property
    def covered(self) -> bool:
        return bool(self.variants or self.reason)


def config_class(family: Family) -> Any:
    """transformers' config class. Errors: hf.Absent."""
    names = {str(config["model_type"]) for config in family.variants.values()}
    (name,) = names
    if name not in transformers.CONFIG_MAPPING:
        raise hf.Absent(f"transformers {hf.VERSION} has no {name}")
    return transformers.CONFIG_MAPPING[name]


def reason_for(family: Family, name: str) -> str:
    """Why a field need not be varied; "" when nothing says so."""
    patterns = [(pattern, reason) for reason, patterns in INERT.items() for pattern in patterns.split()]
    found = (reason for pattern, reason in (*family.inert.items(), *patterns) if fnmatchcase(name, pattern))
    return next(found, "") or settings.reason_for(name)


def fields_of(family: Family) -> list[Field]:
    """Every field of the installed release's config class. Errors: hf.Absent."""
    kind = config_class(family)
    default = kind().to_dict()
    resolved: dict[str, dict[str, Any]] = {}
    for name, config in family.variants.items():
        with suppress(hf.Crashed), hf.crashes():  # where a release refuses one, that is told where it is compared
            resolved[name] = hf.config_from(kind, config).to_dict()
    found = []
    for name, value in default.items():
        variants = tuple(variant for variant, config in resolved.items() if config.get(name) != value)
        found.append(Field(name, variants, reason_for(family, name)))
    return found


def show() -> int:
    """Print what is varied and what is not, family by family; the number of fields that are neither varied nor explained."""
    table = Table(title=f"Fields of transformers {hf.VERSION}'s configs", title_justify="left")
    for heading in ("family", "fields", "varied", "inert", "neither"):
        table.add_column(heading, justify="left" if heading in ("family", "neither") else "right")
    missing = 0
    for family in FAMILIES.values():
        try:
            fields = fields_of(family)
        except hf.Absent as reason:
            table.add_row(family.name, "–", "–", "–", f"absent: {reason}")
            continue
        varied = [f for f in fields if f.variants and not f.reason]
        neither = [f.name for f in fields if not f.covered]
        missing += len(neither)
        inert = len(fields) - len(varied) - len(neither)
        table.add_row(family.name, str(len(fields)), str(len(varied)), str(inert), ", ".join(neither) or "–")
    Console().print(table)
    return missing
