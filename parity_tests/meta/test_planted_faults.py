"""Faults planted in transformers itself, at run time: each is caught where it is, and called by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from parity_tests.harness import hf
from parity_tests.harness.caches import explain_schedule
from parity_tests.harness.case import Case, cache_batches, reference
from parity_tests.harness.failure import failure
from parity_tests.harness.record import Backend
from parity_tests.harness.run import Run, confront, explain
from parity_tests.harness.schedules import SCHEDULES, read_theirs

CASE = Case("llama", "head_dim", "f64", Backend("eager"))


@pytest.fixture
def theirs() -> nn.Module:
    """A model of transformers of this test's own."""
    return hf.build(CASE.record.hf_class, CASE.source, CASE.precision, CASE.backend)


def layers(model: Any) -> Any:
    return model.model.layers


def wrong_eps(model: Any) -> None:
    for layer in layers(model):
        layer.input_layernorm.variance_epsilon = 1e-6


def one_wrong_eps(model: Any) -> None:
    layers(model)[1].post_attention_layernorm.variance_epsilon = 1e-6


def no_scale(model: Any) -> None:
    layers(model)[1].self_attn.scaling = 1.0


def backwards(model: Any) -> None:
    rotary = model.model.rotary_emb
    forward = rotary.forward

    def turned(*args: Any, **kwargs: Any) -> Any:
        cos, sin = forward(*args, **kwargs)
        return cos, -sin

    rotary.forward = turned


def other_theta(model: Any) -> None:
    width = reference(CASE).config.rope.width
    model.model.rotary_emb.inv_freq = (1.0 / 10000.0 ** (torch.arange(0, width, 2).float() / width)).double()


def swapped_gate(model: Any) -> None:
    mlp = layers(model)[2].mlp
    mlp.gate_proj, mlp.up_proj = mlp.up_proj, mlp.gate_proj


def unpermuted(model: Any) -> None:
    attention = layers(model)[0].self_attn
    config = reference(CASE).config
    for projection, heads in ((attention.q_proj, config.n_heads), (attention.k_proj, config.n_kv_heads)):
        weight = projection.weight.data.unflatten(0, (heads, 2, -1))
        projection.weight.data = weight.transpose(1, 2).flatten(0, 2).contiguous()


def no_last_norm(model: Any) -> None:
    model.model.norm.forward = lambda x: x


FAULTS: dict[Callable[[Any], None], tuple[str, str | None]] = {
    wrong_eps: ("layers.0.attn_norm", "eps is 1e-6 whatever the config says"),
    one_wrong_eps: ("layers.1.ffn_norm", "eps is 1e-6 whatever the config says"),
    no_scale: ("layers.1.attn.probs", "scores are not scaled"),
    backwards: ("rope.sin", None),
    other_theta: ("rope.cos", "theta is 10000 whatever the config says"),
    swapped_gate: ("layers.2.ffn", "gate and up swapped"),
    unpermuted: ("layers.0.attn.keys", "q and k not permuted"),
    no_last_norm: ("norm", "last norm left out"),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_caught_at_its_site_and_called_by_its_name(fault: Callable[[Any], None], theirs: nn.Module) -> None:
    site, name = FAULTS[fault]
    fault(theirs)
    run = confront(CASE, theirs)
    first = run.first_difference()
    assert first is not None
    assert first.site == site
    assert first.input_error is not None
    assert first.input_error < 1e-13
    found = explain(run, first)
    assert (found and found[0].name) == name


def test_a_wrong_mask_is_caught_at_the_mask(theirs: nn.Module) -> None:
    def shifted(module: nn.Module, args: Any, kwargs: Any) -> Any:
        wider = kwargs["attention_mask"].clone()
        wider[..., 1:] = torch.maximum(wider[..., 1:], kwargs["attention_mask"][..., :-1])
        return args, {**kwargs, "attention_mask": wider}

    for layer in layers(theirs):
        layer.register_forward_pre_hook(shifted, with_kwargs=True)
    run = confront(CASE, theirs)
    first = run.first_difference()
    assert first is not None
    assert first.site == "mask"
    found = explain(run, first)
    assert found is not None
    assert found[0].name == "a query sees one token ahead"


def test_a_cache_that_writes_one_slot_early_is_caught_and_explained(
    theirs: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = transformers.DynamicCache.update

    def early(self: Any, keys: Any, values: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        start = self.get_seq_length(layer_idx)
        held = update(self, keys, values, layer_idx, *args, **kwargs)
        if start:
            for tensor in held:
                tensor[..., start - 1 : -1, :] = tensor[..., start:, :].clone()
                tensor[..., -1:, :] = 0
        return held

    run = confront(CASE, theirs)
    batches = cache_batches(run.case)
    monkeypatch.setattr(transformers.DynamicCache, "update", early)
    logits = [read_theirs(theirs, "f64", batch, SCHEDULES["steps"])[0] for batch in batches]
    monkeypatch.undo()
    found = explain_schedule(run.case, "steps", logits)
    assert found is not None
    assert found.name == "the cache writes one slot early"


def test_the_failure_says_where_how_much_why_and_how_to_see_it_again(theirs: nn.Module) -> None:
    no_scale(theirs)
    run: Run = confront(CASE, theirs)
    first = run.first_difference()
    assert first is not None
    text = failure(run, first, '"parity_tests/test_blocks.py::test_block[llama-head_dim-f64-eager-isolated-attn]"')
    lines = text.splitlines()
    assert lines[0] == "llama/head_dim  f64  attention=eager  cpu"
    assert "first difference   layers.1.attn.probs   input agrees" in lines[1]
    assert "(bar 1e-11)" in lines[1]
    assert "worst element" in lines[2]
    assert '"scores are not scaled" — with it the reference agrees' in lines[3]
    assert f"transformers {transformers.__version__}" in lines[4]
    assert lines[5].endswith('pytest "parity_tests/test_blocks.py::test_block[llama-head_dim-f64-eager-isolated-attn]"')
