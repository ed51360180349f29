"""Both sides write under one setting of generation: tokens and the scores they are chosen by, or beams and their scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from parity_tests.harness import hf, ours
from parity_tests.harness.batches import Batch, padded, tokens
from parity_tests.harness.case import Case, reads, twin
from parity_tests.harness.compare import Outcome, absent, refused, under_lens, worse
from parity_tests.harness.known import expected
from parity_tests.harness.memory import of_model
from parity_tests.harness.settings import LEAVE_SCORES, LENGTH, SEE_PADDING, SETTINGS, Free, field_of, is_one_of
from parity_tests.harness.shapes import unchecked
from reference_impl.beam_search import Beam, beam_search
from reference_impl.generation import generate
from reference_impl.generation_settings import Settings

N_NEW = 5
FEW = 3
"""So many different tokens in a prompt, so that runs of two come again."""


def text_of(case: Case, length: int, *, pads: bool, filler: int) -> Batch:
    """What is continued: two rows of few different tokens, or one where the model knows of no padding, some of it filled."""
    given, name = reads(case), f"settings.{length}.{pads}"
    rows = 2 if given.source or "left" in given.padding else 1
    few = min(FEW, given.vocab_size)
    inputs = {**given.prompt(name, (rows, length)).inputs, "ids": tokens(name, (rows, length), few)}
    text, real = "ids", "real"
    if given.source:
        starts = torch.full((rows, 1), given.start)
        source = tokens(f"{name}.source", (rows, LENGTH), few)
        inputs |= {"ids": torch.cat([starts, inputs["ids"][:, 1:]], -1), "source": source}
        text, real = "source", "source_real"
    if pads and rows == 2 and inputs[text].shape[1] > 3:
        inputs[real] = padded(inputs[text], [(0, 0), (3, 0) if given.shiftable else (0, 3)])
        inputs[text] = inputs[text].masked_fill(~inputs[real], filler)
    return Batch(name=name, inputs=inputs).to(case.device)


def free_of(case: Case, prompt: Batch) -> Free:
    """What the reference writes when nothing is set."""
    model = expected(case)

    def make() -> Free:
        with unchecked():
            given: dict[str, Any] = ours.cast(model, prompt.inputs)
            made = generate(model, **given, n_new=N_NEW)
        least = int(made.scores.flatten(0, 1).amax(0).argmin())
        return Free(made.tokens[0].tolist(), int(prompt.inputs["ids"][0, -1]), least)

    return of_model(model, ("free", prompt.name), make)


def compare_setting(case: Case, name: str) -> Outcome:
    """transformers' tokens and processed scores under a setting, against the reference's. Errors: hf.Crashed."""
    begins = any(field.startswith("forced_bos") for field in SETTINGS[name](Free([0, 1, 2, 3, 4], 5, 6)))
    sees = any(is_one_of(field, SEE_PADDING) for field in SETTINGS[name](Free([0, 1, 2, 3, 4], 5, 6)))
    shape: dict[str, Any] = {"length": 1 if begins else LENGTH, "pads": not sees}
    free = free_of(case, text_of(case, **shape, filler=0))
    prompt = text_of(case, **shape, filler=free.pad)
    values = {"eos_token_id": [free.eos], "pad_token_id": free.pad, **SETTINGS[name](free)}
    if missing := [field for field in values if not hasattr(hf.no_settings(), field)]:
        return absent(f"transformers {hf.VERSION} has no {missing[0]}")
    side = (Beams if "num_beams" in values else Steps)(case, prompt, values)
    without = {field: value for field, value in values.items() if field != field_of(name)}
    if not is_one_of(name, LEAVE_SCORES):
        assert not side.agrees_with(without), f"{name} changes nothing here, so that the comparison says nothing"
    return side.outcome()


class Steps:
    """Token by token: the scores that each was chosen by, over the text that transformers wrote."""

    def __init__(self, case: Case, prompt: Batch, values: Mapping[str, Any]):
        self.model, self.prompt, self.values = expected(case), prompt, values
        with torch.random.fork_rng():
            torch.manual_seed(0)
            found = hf.generate(twin(case), case.precision, prompt, N_NEW, output_scores=True, **values)
        self.tokens, self.scores = found.sequences, torch.stack(found.scores, 1)
        ends = torch.isin(self.tokens, torch.tensor(values["eos_token_id"], device=self.tokens.device)).long()
        self.going = ends.cumsum(-1) - ends == 0  # (b, n): up to the end of each text

    def along(self, values: Mapping[str, Any]) -> Tensor:
        """The reference's scores (b, n, v) of what transformers wrote."""
        given: dict[str, Any] = ours.cast(self.model, self.prompt.inputs)
        with unchecked():
            made = generate(self.model, **given, n_new=N_NEW, settings=Settings(**values), follow=self.tokens)
        return made.scores

    def agrees_with(self, values: Mapping[str, Any]) -> bool:
        """Whether the reference would come to the same with these."""
        return scores_alike(self.scores[self.going], self.along(values)[self.going]).verdict == "same"

    def outcome(self) -> Outcome:
        """The worst of all."""
        mine = self.along(self.values)
        found = scores_alike(self.scores[self.going], mine[self.going])
        if self.values.get("do_sample"):
            chosen = mine.gather(-1, self.tokens[..., None])[..., 0][self.going]
            return refused("transformers drew a token that is cut off") if chosen.isneginf().any() else found
        return worse(found, under_lens(self.tokens[self.going], mine.argmax(-1)[self.going]))


class Beams:
    """The best texts and their scores."""

    def __init__(self, case: Case, prompt: Batch, values: Mapping[str, Any]):
        self.model, self.prompt, self.values = expected(case), prompt, values
        found = hf.generate(twin(case), case.precision, prompt, N_NEW, output_scores=True, **values)
        self.tokens, self.scores = found.sequences, found.sequences_scores

    def search(self, values: Mapping[str, Any]) -> list[Beam]:
        """The reference's, row by row."""
        given: dict[str, Any] = ours.cast(self.model, self.prompt.inputs)
        with unchecked():
            rows = beam_search(self.model, **given, n_new=N_NEW, settings=Settings(**values))
        return [beam for row in rows for beam in row]

    def agrees_with(self, values: Mapping[str, Any]) -> bool:
        """Whether the reference would come to the same with these."""
        return self.judge(self.search(values)).verdict == "same"

    def judge(self, mine: list[Beam]) -> Outcome:
        """Texts and scores."""
        count, longest = self.tokens.shape
        if len(mine) != count or max(len(beam.tokens) for beam in mine) != longest:
            lengths = [len(beam.tokens) for beam in mine]
            return refused(f"transformers gives {count} texts of up to {longest} tokens, the reference {lengths}")
        filled = [[*beam.tokens, *[self.values["pad_token_id"]] * (longest - len(beam.tokens))] for beam in mine]
        written = under_lens(self.tokens, torch.tensor(filled, device=self.tokens.device))
        return worse(written, under_lens(self.scores, self.scores.new_tensor([beam.score for beam in mine])))

    def outcome(self) -> Outcome:
        """The worst of all."""
        return self.judge(self.search(self.values))


LARGE = 1e30
"""No score is so large; what stands for infinity is."""


def scores_alike(theirs: Tensor, mine: Tensor) -> Outcome:
    """Scores (n, v): what is banned, or stands for infinity, is the same on both sides, and the others agree."""
    odd = [~(x.abs() < LARGE) for x in (theirs, mine)]
    if not torch.equal(*odd) or theirs[odd[0]].tolist() != mine[odd[1]].tolist():
        return refused(f"transformers bans {int(odd[0].sum())} scores, the reference {int(odd[1].sum())}, or others")
    return under_lens(theirs.masked_fill(odd[0], 0.0), mine.masked_fill(odd[1], 0.0))
