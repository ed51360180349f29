"""Beam search: of the texts that one token more could make, the likeliest few go on. Sutskever et al. 2014, 3.2.

A text's score is the sum of its tokens' processed log-probabilities, over length^length_penalty once it has ended (as Wu et
al. 2016, 7, without their constant). Everything is read anew at each step, one row at a time: this says what is found.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from reference_impl.generation import Reader, prompted
from reference_impl.generation_settings import Settings, processed


class Beam(NamedTuple):
    """New tokens and their score."""

    score: float
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """One row's prompt (1, s), what is read beside it, and how many tokens may be written."""

    model: Any
    ids: Tensor
    real: Tensor | None
    beside: dict[str, Tensor]
    n_new: int
    settings: Settings

    def continued(self, beams: list[Beam]) -> list[Beam]:
        """Every text of one token more that could be kept, the likeliest first: as many as leave `num_beams` that go on."""
        texts = [torch.tensor([[*self.ids[0].tolist(), *beam.tokens]], device=self.ids.device) for beam in beams]
        found: list[Beam] = []
        for beam, ids in zip(beams, texts, strict=True):
            text = prompted(self.ids, self.real, self.beside, self.n_new)
            text = text.and_then(ids[:, self.ids.shape[1] :])
            read = Reader(self.model, masked=self.real is not None, beside=self.beside)
            scores = processed(read(ids, text).log_softmax(-1), text, self.settings)[0]
            found += [Beam(beam.score + float(s), (*beam.tokens, token)) for token, s in enumerate(scores)]
        several = max(2, 1 + len(self.settings.eos_token_id))
        return sorted(found, reverse=True)[: several * self.settings.num_beams]

    def ends(self, beam: Beam) -> bool:
        """Whether a text ends here."""
        return beam.tokens[-1] in self.settings.eos_token_id or len(beam.tokens) == self.n_new

    def by_length(self, score: float, length: int) -> float:
        """The score of a text that has ended."""
        return score / length**self.settings.length_penalty

    def done(self, ended: list[Beam], best: Beam) -> bool:
        """Whether nothing that goes on is to be waited for."""
        given = self.settings
        if len(ended) < given.num_beams:
            return False
        if given.early_stopping is True:
            return True
        longest = given.early_stopping == "never" and given.length_penalty > 0
        return self.by_length(best.score, self.n_new if longest else len(best.tokens)) <= ended[-1].score

    def search(self) -> list[Beam]:
        """The texts that have ended, the best first."""
        beams, ended, kept = [Beam(0.0, ())], list[Beam](), self.settings.num_beams
        while beams:
            found = self.continued(beams)
            new = [beam for beam in found[:kept] if self.ends(beam)]
            ended += [Beam(self.by_length(beam.score, len(beam.tokens)), beam.tokens) for beam in new]
            ended = sorted(ended, reverse=True)[:kept]
            beams = [beam for beam in found if not self.ends(beam)][:kept]
            if beams and self.done(ended, beams[0]):
                break
        return ended


@torch.no_grad()
def beam_search(
    model: Any,
    ids: Int[Tensor, "b s"],
    *,
    n_new: int,
    settings: Settings,
    real: Bool[Tensor, "b s"] | None = None,
    **beside: Tensor,
) -> list[list[Beam]]:
    """For each row the best `num_return_sequences` texts of `num_beams` beams, with their scores."""
    found = []
    for row in range(len(ids)):
        one = slice(row, row + 1)
        own = {name: x[one] for name, x in beside.items()}
        search = Row(model, ids[one], None if real is None else real[one], own, n_new, settings)
        found.append(search.search()[: settings.num_return_sequences])
    return found
