"""What the other classes of a family read, what of the trunk they take, and what they are made for: data for `siblings`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from parity_tests.fixtures.values import integers
from parity_tests.harness.batches import Batch
from parity_tests.harness.hf import NAMES, WITH_SOURCE
from parity_tests.harness.record import Fed, Task
from reference_impl.encoder_decoder import shift_right
from reference_impl.heads import at, last_real
from reference_impl.losses import IGNORED, answer_loss, class_loss, label_set_loss, regression_loss

Named = Mapping[str, Tensor]
# --- what they are given ---


def fed(inputs: Named, names: Mapping[str, str] = NAMES) -> Fed:
    """The same for both sides."""
    return Fed(mine=inputs, theirs={names[name]: x.long() if x.dtype == torch.bool else x for name, x in inputs.items()})


def text(batch: Batch, config: Any) -> Fed:
    """What the family's models read. In one text all padding is the token for it, and nothing else is."""
    inputs = dict(batch.inputs)
    if "source" in inputs:
        return fed(inputs, WITH_SOURCE)
    if "ids" in inputs:
        ids, pad = inputs["ids"], config.pad_token_id
        inputs["ids"] = torch.where(ids == pad, ids + 1, ids).masked_fill(~batch.keep["s"], pad)
    return fed(inputs)


def choices(batch: Batch, config: Any) -> Fed:
    """Rows in pairs, two choices of one question."""
    given = text(batch, config)
    return replace(given, theirs={name: x.unflatten(0, (-1, 2)) for name, x in given.theirs.items()}, choices=2)


def choices_by_slot(batch: Batch, config: Any) -> Fed:
    """The same, of which each is judged by the token in one slot. Positions alone have to be of rows, see Findings."""
    given, flat = choices(batch, config), text(batch, config).theirs
    rows = {name: x for name, x in flat.items() if name == "position_ids"}
    return replace(given, theirs={**given.theirs, **rows, "mc_token_ids": SLOTS[: batch.rows].view(-1, 2)})


def source(batch: Batch, config: Any) -> Fed:
    """The source, to an encoder by itself."""
    names = {"source": "ids", "source_real": "real"}
    return fed({names[name]: x for name, x in batch.inputs.items() if name in names})


def answers(batch: Batch, config: Any) -> Fed:
    """The decoder's text, to a decoder by itself."""
    return fed({name: x for name, x in batch.inputs.items() if name in ("ids", "real")})


def source_as_answer(batch: Batch, config: Any) -> Fed:
    """A source that ends, and at its end ends again; and as the decoder's text the same, one place to the right."""
    given = source(batch, config).mine
    ids, end = given["ids"], config.eos_token_id
    slots = torch.arange(ids.shape[1]).expand(ids.shape).masked_fill(~batch.keep["m"], 0)
    ends = slots.amax(-1, keepdim=True) - torch.tensor([[0, 2]])
    ids = torch.where(ids == end, ids + 1, ids).scatter(1, ends, end)
    moved = shift_right(ids, start=config.decoder_start_token_id, pad=config.pad_token_id)
    real = {"source_real": given["real"]} if "real" in given else {}
    return replace(fed({**given, "ids": ids}), mine={"ids": moved, "source": ids, **real})


# --- what of the trunk's output ---

SLOTS = torch.tensor([3, 11, 9, 4])


def last(y: Tensor, batch: Batch, given: Fed) -> Tensor:
    return last_real(y, batch.keep["s"])


def end_of_source(y: Tensor, batch: Batch, given: Fed) -> Tensor:
    return last_real(y, batch.keep["m"])


def in_slot(y: Tensor, batch: Batch, given: Fed) -> Tensor:
    return at(y, SLOTS[: batch.rows, None])[:, 0]


# --- what they are made for ---


def alone(name: str) -> Callable[[Tensor], Named]:
    return lambda out: {name: out}


def _classes(name: str, of: str) -> Callable[[Batch, Named], dict[str, Named]]:
    return lambda batch, out: {"class": {name: torch.arange(len(out[of])) % out[of].shape[-1]}}


def _sequence_labels(batch: Batch, out: Named) -> dict[str, Named]:
    """A class, or some of all; where there is one output, a number."""
    rows, n = out["logits"].shape
    if n == 1:
        return {"number": {"labels": integers(f"numbers.{batch.name}", (rows,), 8).double() / 64}}
    several = integers(f"several.{batch.name}", (rows, n), 1).double() + 1
    return {**_classes("labels", "logits")(batch, out), "set": {"labels": several}}


def _sequence_loss(kind: str, out: Named, labels: Named) -> Tensor:
    if kind == "number":
        return regression_loss(out["logits"][:, 0], labels["labels"])
    return (label_set_loss if kind == "set" else class_loss)(out["logits"], labels["labels"])


def _token_labels(batch: Batch, out: Named) -> dict[str, Named]:
    real = next(real for real in batch.keep.values() if real.shape == out["logits"].shape[:2])
    labels = torch.arange(real.numel()).view(real.shape) % out["logits"].shape[-1]
    return {"class": {"labels": labels.masked_fill(~real, IGNORED)}}


def _spans(batch: Batch, out: Named) -> dict[str, Named]:
    """Where answers start and end; the last row's ends beyond this text."""
    rows, n = out["start_logits"].shape
    start = torch.arange(rows) + 1
    return {"span": {"start_positions": start, "end_positions": torch.where(start == rows, n + 3, start + 4)}}


BARE = Task(gives=alone("last_hidden_state"))
SEQUENCE = Task(gives=alone("logits"), labels=_sequence_labels, loss=_sequence_loss)
TOKENS = Task(
    gives=alone("logits"), labels=_token_labels, loss=lambda kind, out, labels: class_loss(out["logits"], labels["labels"])
)
NEXT_TOKEN = replace(
    TOKENS, labels=lambda batch, out: {"token": {"labels": batch.inputs["ids"].masked_fill(~batch.keep["s"], IGNORED)}}
)
SPAN = Task(
    gives=lambda out: {"start_logits": out[..., 0], "end_logits": out[..., 1]},
    labels=_spans,
    loss=lambda kind, out, labels: answer_loss(
        out["start_logits"], out["end_logits"], labels["start_positions"], labels["end_positions"]
    ),
    over_padding=True,
)
NEXT_SENTENCE = Task(
    gives=alone("logits"),
    labels=_classes("labels", "logits"),
    loss=lambda kind, out, labels: class_loss(out["logits"], labels["labels"]),
)
PRETRAINING = Task(
    gives=alone("seq_relationship_logits"),
    labels=lambda batch, out: {
        "both": {"labels": batch.inputs["ids"], "next_sentence_label": torch.arange(batch.rows) % 2},
    },
    loss=lambda kind, out, labels: (
        class_loss(out["prediction_logits"], labels["labels"])
        + class_loss(out["seq_relationship_logits"], labels["next_sentence_label"])
    ),
)
CHOICE = replace(NEXT_SENTENCE, gives=lambda out: {"logits": out.view(-1, 2)})
CHOICE_BY_SLOT = Task(
    gives=lambda out: {"mc_logits": out.view(-1, 2)},
    labels=_classes("mc_labels", "mc_logits"),
    loss=lambda kind, out, labels: class_loss(out["mc_logits"], labels["mc_labels"]),
)
