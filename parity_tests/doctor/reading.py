"""What a model loses on a text, by the kind of its head: the next token, a hidden one, or which piece stands beside which."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import chain
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from parity_tests.doctor.patient import Patient
from parity_tests.doctor.statistics import entropy
from parity_tests.doctor.text import Text, TextError

Model = Callable[[Tensor], Tensor]
"""Ids (b, s) to logits (b, s, v) or vectors (b, s, d)."""
LONGEST, USUAL, SHORTEST, FEWEST = 256, 32, 8, 64
"""Tokens: the most of a row, what it has where passages are that long, the least; and the least of a text that a repair could
be told from chance by."""


LOST = 100.0
"""Nats: what is lost at most, and where numbers overflow; guessing loses the logarithm of the vocabulary, some 12."""


class Reading(ABC):
    """Rows of tokens of one length, and what is lost on them. The first half is for choosing, the second for confirming."""

    unit = "token"
    SCREENS: ClassVar[tuple[int, ...]] = (32, 96)
    """Tokens that large models read with each repair, and then with each that gained there, before the rest is read."""

    def __init__(self, rows: Tensor):
        self.rows = rows
        half = len(rows) // 2
        self.choose, self.confirm = rows[:half], rows[half:]

    @property
    def n_tokens(self) -> int:
        return self.rows.numel()

    def screens(self, large: bool) -> list[Tensor]:
        """What repairs are tried on, one after the other: the half for choosing, or of large models parts of its rows first."""
        if not large:
            return [self.choose]
        return [self.choose[: n // SHORTEST, : max(n // len(self.choose), SHORTEST)] for n in self.SCREENS]

    def losses(self, model: Model, rows: Tensor) -> Tensor:
        """Nats (n,), one a token or a piece, in order."""
        with torch.inference_mode():
            return self._losses(model, rows).nan_to_num(nan=LOST, posinf=LOST).clamp(max=LOST)

    def mean_loss(self, model: Model) -> float:
        """Nats a token or piece, of both halves."""
        return float(torch.cat([self.losses(model, rows) for rows in (self.choose, self.confirm)]).mean())

    @abstractmethod
    def _losses(self, model: Model, rows: Tensor) -> Tensor: ...

    def ignorant(self) -> float:
        """What one loses who has learned nothing but how often each token occurs."""
        return entropy(self.rows.flatten().tolist())

    def groups(self, rows: Tensor) -> Tensor | None:
        """Whole numbers (n,), in the order of the losses: alike for the same token after the same one. None: all differ."""
        return None

    def cheats(self, model: Model) -> bool:
        """Whether a token's loss is made with what it is not to see."""
        return False


def _pairs(rows: Tensor) -> Tensor:
    """A number for each token after the first, by it and the one before it: (r, s) to (r, s - 1)."""
    return rows[:, :-1] * (int(rows.max()) + 1) + rows[:, 1:]


class NextToken(Reading):
    """Of a decoder: -log p of each token after the first, by those before it."""

    def _losses(self, model: Model, rows: Tensor) -> Tensor:
        logits = model(rows).float()
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten(), reduction="none")

    def groups(self, rows: Tensor) -> Tensor:
        return _pairs(rows).flatten()

    def cheats(self, model: Model) -> bool:
        rows = self.choose[:1, : 2 * SHORTEST]
        other = rows.clone()
        other[:, SHORTEST:] = rows[:, SHORTEST:].flip(-1)
        if torch.equal(rows, other):
            return False
        with torch.inference_mode():
            before, after = (model(ids)[:, : SHORTEST - 1].float() for ids in (rows, other))
        return not torch.allclose(before, after, rtol=1e-3, atol=1e-3)


class HiddenToken(Reading):
    """Of an encoder with the head of masked language modelling: -log p of tokens that are hidden, every seventh at a time."""

    EVERY, PHASES = 7, (1, 3, 5)
    SCREENS = (112,)  # of which 48 are hidden

    def __init__(self, rows: Tensor, mask: int):
        super().__init__(rows)
        self.mask = mask

    def _losses(self, model: Model, rows: Tensor) -> Tensor:
        slots, found = torch.arange(rows.shape[1]), []
        for phase in self.PHASES:
            hidden = slots % self.EVERY == phase
            logits = model(rows.masked_fill(hidden, self.mask)).float()
            found.append(F.cross_entropy(logits[:, hidden].flatten(0, 1), rows[:, hidden].flatten(), reduction="none"))
        return torch.cat(found)

    def groups(self, rows: Tensor) -> Tensor:
        slots, pairs = torch.arange(1, rows.shape[1]), _pairs(rows)
        return torch.cat([pairs[:, slots % self.EVERY == phase].flatten() for phase in self.PHASES])


class Neighbours(Reading):
    """Of an encoder without a head: -log p that a piece of a passage is most like another of the same passage, by the cosine
    of mean vectors, which is what sentence encoders are trained to do. Reimers and Gurevych 2019, Gao et al. 2021.
    """

    unit = "piece"
    PIECE, TEMPERATURE = 8, 0.1

    def screens(self, large: bool) -> list[Tensor]:
        return [self.choose]  # a piece is one number

    def _losses(self, model: Model, rows: Tensor) -> Tensor:
        pieces = rows[:, : rows.shape[1] // self.PIECE * self.PIECE].unflatten(1, (-1, self.PIECE))  # as (r, p, s)
        passage = torch.arange(len(rows)).repeat_interleave(pieces.shape[1])
        y = F.normalize(model(pieces.flatten(0, 1)).float().mean(1), dim=-1)  # as (n, d)
        scores = (y @ y.T / self.TEMPERATURE).fill_diagonal_(-math.inf)
        same = passage[:, None] == passage
        return scores.logsumexp(-1) - scores.masked_fill(~same, -math.inf).logsumexp(-1)

    def ignorant(self) -> float:
        each, n = self.rows.shape[1] // self.PIECE, len(self.choose)
        return math.log((each * n - 1) / max(each - 1, 1))


def reading_of(patient: Patient, text: Text) -> Reading | str:
    """How a model of this family is read; or why it has no loss on a text. Errors: TextError."""
    if not hasattr(patient.config, "vocab_size"):
        return "a model of this family reads none"
    reads = patient.record.reads(patient.config)
    if reads.source or reads.memory:
        return "a model of this family answers to something else than the text itself"
    rows = rows_of(text, reads.reach)
    if int(rows.max()) >= reads.vocab_size:
        raise TextError(f"{text.source}: token {int(rows.max())} is none of the model's {reads.vocab_size}")
    if reads.causal:
        return NextToken(rows)
    if patient.headless():
        return Neighbours(rows)
    if text.mask is None:
        return "which token hides others is not known; give its id by --mask"
    return HiddenToken(rows, text.mask)


def rows_of(text: Text, reach: int | None) -> Tensor:
    """All passages in rows of one length, by which most tokens are kept; four rows at least. Errors: TextError for too few."""
    passages = text.passages
    n = sum(map(len, passages))
    most = min(LONGEST, reach or LONGEST, n // 4)
    widths = sorted({min(len(passage), most) for passage in passages} | {most, min(most, n // 8)}, reverse=True)
    kept = {width: sum(len(passage) // width for passage in passages) for width in widths if width >= SHORTEST}
    fit = {width: rows * width for width, rows in kept.items() if rows >= 4}
    if not fit or max(fit.values()) < FEWEST:
        raise TextError(f"the text has {n} tokens; a repair can be told from chance by {4 * FEWEST} or more")
    width = max(fit, key=lambda width: (width >= USUAL, fit[width]))
    cut = chain.from_iterable(
        (passage[i : i + width] for i in range(0, len(passage) - width + 1, width)) for passage in passages
    )
    return torch.tensor(list(map(list, cut)))
