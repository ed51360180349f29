"""What a trained model shows beside its sites: the same text, a known answer, and what a wrong mapping looks like."""

from __future__ import annotations

import pytest
import torch

import weight_mapping
from fixtures import real
from parity_tests.harness import hf
from parity_tests.harness.batches import from_ids
from parity_tests.harness.case import Case, reference, twin
from parity_tests.harness.compare import under_lens
from parity_tests.harness.failure import failure
from parity_tests.harness.greedy import generate_both
from parity_tests.harness.recorder import Recorder
from parity_tests.harness.run import compare
from weight_mapping import open_checkpoint
from weight_mapping.rules import PairsToHalves

pytestmark = [pytest.mark.trained, pytest.mark.level("generation"), pytest.mark.precisions("f64", "f32")]

PROMPTS = {
    "capital": [504, 3575, 282, 4649, 314],
    "story": [6403, 1980, 253, 655, 28, 665, 436, 253, 1838],
    "code": [1604, 3987, 46477, 24, 94, 727, 472, 585, 304, 2067],
}
"""Token ids: for SmolLM2 "The capital of France is", "Once upon a time, there was a little", "def fibonacci(n):…"."""
PARIS = 7042
N_NEW = 32


@pytest.mark.parametrize("prompt", PROMPTS)
def test_continuation(case: Case, prompt: str, recorder: Recorder) -> None:
    run = recorder.run(case, "accumulated", f"continuation.{prompt}")
    ids = torch.tensor([PROMPTS[prompt]], device=case.device) % run.model.config.vocab_size
    theirs, mine = generate_both(case, from_ids(prompt, ids), N_NEW)
    recorder.check(case, f"continuation.{prompt}", under_lens(theirs, mine))


def is_smollm2(case: Case) -> bool:
    return case.source == real.path_of("smollm2")


def test_knows_the_capital_of_france(case: Case) -> None:
    if not is_smollm2(case):
        pytest.skip("a fact about SmolLM2, and this is another checkpoint")
    ids = torch.tensor([PROMPTS["capital"]], device=case.device)
    with torch.no_grad():
        mine = reference(case)(ids)[0, -1].softmax(-1)
    theirs = hf.run(twin(case), case.precision, {"ids": ids}).logits[0, -1].softmax(-1)
    for probability in (mine, theirs):
        assert int(probability.argmax()) == PARIS
        assert float(probability[PARIS]) == pytest.approx(0.773, abs=0.001)


def test_a_permutation_left_out_fails_at_the_first_attention_and_is_explained(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text would stay fluent, at a perplexity of 15 instead of 6: only a comparison notices."""
    if open_checkpoint(case.source).layout != "gguf":
        pytest.skip("only GGUF's q and k are in another order than the reference's")
    if case.precision != "f64":
        pytest.skip("explained under the lens alone")
    run = compare(case)
    monkeypatch.setattr(PairsToHalves, "__call__", lambda self, tensors: tensors)
    wrong = run.against(weight_mapping.load(case.source, dtype=run.dtype))
    first = wrong.first_difference()
    assert first is not None
    text = failure(wrong, first, "id")
    assert "first difference   layers.0.attn.keys   input agrees" in text
    assert '"q and k permuted once more" — with it the reference agrees' in text
