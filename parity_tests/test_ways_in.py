"""The other ways into a model: embeddings for ids, masks of four dimensions, several texts in one row, some logits only."""

from __future__ import annotations

import pytest
import torch

from parity_tests.harness import hf, known
from parity_tests.harness.case import Case, reads, reference, twin
from parity_tests.harness.compare import under_lens
from parity_tests.harness.recorder import Recorder
from parity_tests.harness.sides import batch_of, mine, theirs
from reference_impl.mask import causal_mask, padding_mask, window_mask

pytestmark = [pytest.mark.level("ways in"), pytest.mark.precisions("f64"), pytest.mark.tiny, pytest.mark.shallow]


def test_embeddings_instead_of_ids(case: Case, recorder: Recorder) -> None:
    recorder.run(case, "accumulated", "inputs_embeds")
    batch, model = batch_of(case, "plain"), twin(case)
    text = "source" if batch.source is not None else "ids"
    if not hf.takes(model, "inputs_embeds"):
        pytest.skip("this model takes ids alone")
    with hf.lens_for("f64"):
        embedded = model.get_input_embeddings()(batch.inputs[text])
    beside = {name: x for name, x in batch.inputs.items() if name != text}
    found = theirs(case, beside, inputs_embeds=embedded)
    recorder.judge(case, "inputs_embeds", lambda ours: under_lens(found, mine(case, batch.inputs, model=ours())))


@pytest.mark.causal
@pytest.mark.parametrize("dtype", ["bool", "float"])
def test_a_mask_of_four_dimensions(case: Case, dtype: str, recorder: Recorder) -> None:
    """(b, 1, s, s) as the caller wants it: here causal, padded and as far as the window reaches, so that it says what the
    model makes of a mask of two dimensions.
    """
    recorder.run(case, "accumulated", f"mask-4d.{dtype}")
    batch = batch_of(case, "padded")
    if "rope" not in vars(reference(case).config) or batch.real is None:
        pytest.skip("only decoders built like Llama are asked for this")
    first, *others = set(reference(case).windows)
    if others:
        pytest.skip("some layers of this model have a window and some have none, which one mask cannot say")
    slots = torch.arange(batch.length)
    visible = causal_mask(slots, slots) & padding_mask(batch.inputs["real"])
    visible = visible if first is None else visible & window_mask(slots, slots, first)
    mask = visible if dtype == "bool" else torch.zeros(visible.shape).double().masked_fill(~visible, torch.finfo().min)
    beside = {name: x for name, x in batch.inputs.items() if name != "real"}
    found = batch.kept(theirs(case, beside, attention_mask=mask))
    recorder.judge(
        case,
        f"mask-4d.{dtype}",
        lambda ours: under_lens(found, batch.kept(mine(case, batch.inputs, model=ours()))),
    )


@pytest.mark.causal
@pytest.mark.parametrize("use_cache", [False, True], ids=["bare", "with-cache"])
def test_several_texts_in_one_row(case: Case, use_cache: bool, recorder: Recorder) -> None:
    """Positions that begin anew begin a new text, which sees nothing of those before it, cache or no cache."""
    site = "packed.with-cache" if use_cache else "packed.bare"
    recorder.run(case, "accumulated", site)
    batch = batch_of(case, "plain")
    if "rope" not in vars(reference(case).config):
        pytest.skip("only decoders built like Llama are asked for this")
    lengths, ids = (6, 9, 4), batch.inputs["ids"][:1]
    alone = torch.cat([mine(case, {"ids": part}, model=known.expected(case)) for part in ids.split(lengths, 1)], 1)
    packed = {"ids": ids, "positions": torch.cat([torch.arange(n) for n in lengths])[None]}
    recorder.hold(case, site, lambda side: under_lens(side(packed, use_cache=use_cache), alone), of_both=False)


@pytest.mark.causal
@pytest.mark.parametrize("wanted", [1, 5, "indices"])
def test_some_logits_only(case: Case, wanted: int | str, recorder: Recorder) -> None:
    recorder.run(case, "accumulated", f"logits_to_keep.{wanted}")
    batch = batch_of(case, "plain")
    if not hf.takes(twin(case), "logits_to_keep"):
        pytest.skip("this model gives all logits")
    places = torch.tensor([2, 7, 18]) if wanted == "indices" else torch.arange(batch.length)[-int(wanted) :]
    keep = places if wanted == "indices" else wanted
    found = theirs(case, batch.inputs, logits_to_keep=keep)
    recorder.judge(
        case,
        f"logits_to_keep.{wanted}",
        lambda ours: under_lens(found, mine(case, batch.inputs, model=ours())[:, places]),
    )


def test_positions_are_given_or_counted(case: Case, recorder: Recorder) -> None:
    """Positions said to be 0, 1, 2 … are what a model counts by itself."""
    recorder.run(case, "accumulated", "positions")
    batch = batch_of(case, "plain")
    if not reads(case).positions:
        pytest.skip("this model numbers its tokens by itself")
    steps = torch.arange(batch.length).expand(batch.rows, -1)
    found = theirs(case, {**batch.inputs, "positions": steps})
    recorder.judge(case, "positions", lambda ours: under_lens(found, mine(case, batch.inputs, model=ours())))
