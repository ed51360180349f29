"""Encoder-decoders: answers that are given as labels alone, and a source that is read once."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from parity_tests.harness import hf, ours
from parity_tests.harness.case import Case, batches_of, reference, twin
from parity_tests.harness.compare import under_lens
from parity_tests.harness.recorder import Recorder
from parity_tests.harness.shapes import unchecked
from reference_impl.encoder_decoder import shift_right
from reference_impl.losses import IGNORED


def test_labels_move_one_place_to_the_right() -> None:
    labels = torch.tensor([[5, 6, 7, 8], [5, IGNORED, 7, IGNORED]])
    assert shift_right(labels, start=2, pad=1).tolist() == [[2, 5, 6, 7], [2, 5, 1, 7]]


@pytest.mark.level("training")
@pytest.mark.precisions("f64")
@pytest.mark.one_backend
@pytest.mark.tiny
@pytest.mark.has("n_encoder_layers")
def test_labels_alone(case: Case, recorder: Recorder) -> None:
    """transformers makes the decoder's input of the labels by itself."""
    recorder.run(case, "accumulated", "labels")
    model, theirs = reference(case), cast(Any, twin(case))
    start, pad = theirs.config.decoder_start_token_id, theirs.config.pad_token_id
    if pad is None:
        pytest.skip("transformers shifts no labels where there is no token for padding")
    batch = next(batch for batch in batches_of(case) if batch.name == "padded")
    labels = batch.inputs["ids"].masked_fill(~batch.keep["s"], IGNORED)
    source = {name: x for name, x in batch.inputs.items() if name.startswith("source")}

    output = hf.run(theirs, "f64", source, labels=labels)
    with torch.no_grad(), unchecked():
        logits = ours.read(model, {**source, "ids": shift_right(labels, start=start, pad=pad)})
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
    recorder.check(case, "labels", under_lens(output.logits, logits))
    recorder.check(case, "labels.loss", under_lens(output.loss, loss))


@pytest.mark.level("cache")
@pytest.mark.precisions("f64")
@pytest.mark.one_backend
@pytest.mark.tiny
@pytest.mark.has("n_encoder_layers")
def test_the_source_is_read_once(case: Case) -> None:
    """Over a cache the encoder runs at the first step alone, and so do the projections of the memory."""
    model, batch = reference(case), batches_of(case)[0]
    ids, cache = batch.inputs["ids"], model.new_cache()
    ran: list[str] = []

    def count(name: str) -> RemovableHandle:
        return model.get_submodule(name).register_forward_hook(lambda module, args, output: ran.append(name))

    names = ["encoder", "decoder.layers.0.cross.k_proj", "decoder.layers.0.cross.v_proj", "decoder.layers.0.cross.q_proj"]
    handles = [count(name) for name in names]
    try:
        with torch.no_grad(), unchecked():
            steps: list[Tensor] = [model(ids[:, i : i + 1], source=batch.inputs["source"], cache=cache) for i in range(3)]
            whole = model(ids[:, :3], source=batch.inputs["source"])
    finally:
        for handle in handles:
            handle.remove()
    assert [ran.count(name) for name in names] == [2, 2, 2, 4]  # once over the cache, and once more for the whole
    outcome = under_lens(torch.cat(steps, 1), whole)
    assert outcome.verdict == "same", outcome
