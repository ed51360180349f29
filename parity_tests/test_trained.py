"""What a trained model shows beside its sites: the same text, a known answer, and what a wrong mapping looks like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import pytest
import torch
from torch import Tensor

from parity_tests.fixtures import real
from parity_tests.harness import hf
from parity_tests.harness.batches import Batch, from_ids
from parity_tests.harness.case import Case, reads, reference, twin
from parity_tests.harness.compare import under_lens
from parity_tests.harness.failure import failure
from parity_tests.harness.greedy import generate_both
from parity_tests.harness.known import expected_from
from parity_tests.harness.recorder import Recorder
from parity_tests.harness.run import compare
from weight_mapping import open_checkpoint
from weight_mapping.config import read_config
from weight_mapping.rules import HalvesToPairs, PairsToHalves

pytestmark = [pytest.mark.trained, pytest.mark.level("generation"), pytest.mark.precisions("f64", "f32")]

Read = Callable[[list[int]], Tensor]
"""Token ids (s) to what a model gives for them, (s, v) or (s, d)."""


@dataclass(frozen=True)
class Answer:
    """The most probable token at a place of a text, and its probability."""

    ids: list[int]
    place: int
    token: int
    probability: float

    def check(self, read: Read) -> None:
        found = read(self.ids)[self.place].softmax(-1)
        assert int(found.argmax()) == self.token
        assert float(found[self.token]) == pytest.approx(self.probability, abs=0.001)


@dataclass(frozen=True)
class Likeness:
    """The cosine between each two of some sentences, of which each is the mean of its tokens."""

    sentences: list[list[int]]
    cosines: list[float]

    def check(self, read: Read) -> None:
        means = [read(ids).mean(0) for ids in self.sentences]
        found = [float(torch.cosine_similarity(a, b, dim=0)) for a, b in combinations(means, 2)]
        assert found == pytest.approx(self.cosines, abs=0.0001)


def residues(chain: str) -> list[int]:
    """The token ids of amino acids, in the vocabulary that AntiBERTy and IgLM share."""
    return [5 + "ACDEFGHIKLMNPQRSTVWY".index(letter) for letter in chain]


TEXTS = {
    "smollm2": {
        "capital": [504, 3575, 282, 4649, 314],  # The capital of France is
        "story": [6403, 1980, 253, 655, 28, 665, 436, 253, 1838],  # Once upon a time, there was a little
        "code": [1604, 3987, 46477, 24, 94, 727, 472, 585, 304, 2067],  # def fibonacci(n): …
    },
    "iglm": {"chain": [31, 26, *residues("EVQLVESGGGLVQPGGSLRLS")]},  # [HEAVY] [HUMAN], and how such a chain may begin
    "qwen-coder": {
        "capital": [785, 6722, 315, 9625, 374],  # The capital of France is
        "code": [750, 15801, 39345, 1445, 1648, 421, 308, 2651, 220, 16, 25, 470],  # def fibonacci(n): if n <= 1: return
    },
}
"""Token ids, so that nothing here needs a tokenizer."""

# The heavy chain of trastuzumab between [CLS] and [SEP], with the first of its two invariant cysteines masked.
CHAIN = [
    *(2, *residues("EVQLVESGGGLVQPGGSLRLS"), 4),
    *residues("AASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYC"),
    *(*residues("SRWGGDGFYAMDYWGQGTLVTVSS"), 3),
]
# CC(=O)Cl.Nc1ccccc1>>CC(=O)[MASK]c1ccccc1: of acetyl chloride and aniline, what has become of the nitrogen?
REACTION = [
    *(12, 16, 16, 17, 22, 19, 18, 28, 24, 23, 15, 20, 15, 15, 15, 15, 15, 20, 29),
    *(16, 16, 17, 22, 19, 18, 14, 15, 20, 15, 15, 15, 15, 15, 20, 13),
]

KNOWN = {
    "smollm2": Answer(TEXTS["smollm2"]["capital"], -1, token=7042, probability=0.773),  # Paris
    # The weather is lovely today. It's so sunny outside! He drove to the stadium. The figures of its makers' documentation.
    "minilm": Likeness(
        [
            [101, 1996, 4633, 2003, 8403, 2651, 1012, 102],
            [101, 2009, 1005, 1055, 2061, 11559, 2648, 999, 102],
            [101, 2002, 5225, 2000, 1996, 3346, 1012, 102],
        ],
        [0.6660, 0.1046, 0.1411],
    ),
    "rxnfp": Answer(REACTION, 25, token=23, probability=0.998),  # N
    "antiberty": Answer(CHAIN, 22, token=6, probability=0.991),  # C
    "iglm": Answer(TEXTS["iglm"]["chain"], -1, token=6, probability=0.981),  # C
    "qwen-coder": Answer(TEXTS["qwen-coder"]["code"], -1, token=308, probability=0.989),  # n
}


def texts(case: Case) -> list[tuple[Batch, int]]:
    """What is to be continued, and by how many tokens: the checkpoint's own texts; of a checkpoint that is not in the table,
    some tokens. Fewer where there are not so many positions.
    """
    own = TEXTS.get(real.name_of(case.source) or "", {})
    length, n_new = reads(case).room(9, 32)
    found = [(from_ids(name, torch.tensor([ids])), reads(case).room(len(ids), 32)[1]) for name, ids in own.items()]
    return [(text.to(case.device), n) for text, n in found or [(reads(case).prompt("text", (1, length)), n_new)]]


@pytest.mark.causal
def test_continuation(case: Case, recorder: Recorder) -> None:
    recorder.run(case, "accumulated", "continuation")
    for text, n_new in texts(case):
        site = f"continuation.{text.name}"
        with recorder.crashing(case, site):
            theirs, mine = generate_both(case, text, n_new)
        recorder.check(case, site, under_lens(theirs, mine))


def test_known_answer(case: Case) -> None:
    known = KNOWN.get(real.name_of(case.source) or "")
    if known is None:
        pytest.skip("nothing is known beforehand of a checkpoint that is not in the table")

    def mine(ids: list[int]) -> Tensor:
        with torch.no_grad():
            return reference(case)(torch.tensor([ids], device=case.device))[0]

    def theirs(ids: list[int]) -> Tensor:
        return hf.run(twin(case), case.precision, {"ids": torch.tensor([ids], device=case.device)}).logits[0]

    known.check(mine)
    known.check(theirs)


def names_of_a_permutation(width: int) -> list[str]:
    """What a head's order in GGUF is called when it is taken for the reference's: nothing for one pair, whose order is both;
    either name for two pairs, where the way there is the way back.
    """
    rows = torch.arange(width)
    (there,), (back,) = PairsToHalves(1)((rows,)), HalvesToPairs(1)((rows,))
    if torch.equal(there, rows):
        return []
    return ["q and k permuted once more", *(["q and k not permuted"] if torch.equal(there, back) else [])]


@pytest.mark.precisions("f64")  # under the lens alone, where differences are explained
def test_a_permutation_left_out_fails_at_the_first_attention_and_is_explained(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text would stay fluent, at a perplexity of 15 instead of 6: only a comparison notices."""
    checkpoint = open_checkpoint(case.source)
    family, config = read_config(checkpoint)
    rules = family.tables[checkpoint.layout](config).rules
    if not any(isinstance(op, PairsToHalves) for rule in rules for op in rule.ops):
        pytest.skip("q and k lie in the reference's order here")
    names = names_of_a_permutation(reference(case).config.d_head)
    if not names:
        pytest.skip("a head of one pair has no other order")
    run = compare(case)
    monkeypatch.setattr(PairsToHalves, "__call__", lambda self, tensors: tensors)
    wrong = run.against(expected_from(case, case.source))
    first = wrong.first_difference()
    assert first is not None
    text = failure(wrong, first, "id")
    assert "first difference   layers.0.attn.keys   input agrees" in text
    assert any(f'"{name}" — with it the reference agrees' in text for name in names)
