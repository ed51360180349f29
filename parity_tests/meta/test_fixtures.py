"""The fixtures are deterministic, exact in every precision, and can notice."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from parity_tests.families import FAMILIES
from parity_tests.fixtures import tiny
from parity_tests.fixtures.values import fill, integers, linear
from parity_tests.harness import hf
from parity_tests.harness.case import Case
from parity_tests.harness.points import alone_in, config_of
from parity_tests.harness.record import Backend
from parity_tests.harness.run import compare

VARIANTS = [(family.name, variant) for family in FAMILIES.values() for variant in family.variants]


def test_values_are_the_same_bits_for_ever() -> None:
    """A change here changes every fixture: results before and after are not about the same numbers."""
    digest = hashlib.sha256(integers("model.norm.weight", (1000,), 8).numpy().tobytes()).hexdigest()
    assert digest == "438d4a2e746168ab9cc698ab54ecb64166f2a030f11fc2f4d3cbed8dd5de0883"


def test_values_depend_on_the_name_alone() -> None:
    table = (("*", linear(1.0)),)
    one = fill({"a": (4, 5), "b": (4, 5)}, table)
    other = fill({"b": (4, 5), "a": (4, 5)}, table)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["a"], one["b"])


def test_a_tensor_that_no_pattern_matches_is_refused() -> None:
    with pytest.raises(KeyError, match="no rule fills 'a'"):
        fill({"a": (1,)}, (("b", linear(1.0)),))


@pytest.mark.parametrize(("family", "variant"), VARIANTS, ids=str)
def test_every_value_is_exact_in_half_precision_and_none_is_default(family: str, variant: str) -> None:
    for name, tensor in load_file(tiny.path_of(family, variant) / "model.safetensors").items():
        for dtype in (torch.bfloat16, torch.float16):
            assert torch.equal(tensor, tensor.to(dtype).float()), name
        assert len(tensor.unique()) > min(4, tensor.numel() // 2), f"{name} is nearly constant"


@pytest.mark.tiny
@pytest.mark.broad
@pytest.mark.one_backend
@pytest.mark.precisions("f64")
def test_attention_is_peaked_and_scores_spread(case: Case) -> None:
    """A flat softmax would hide a wrong score."""
    try:
        run = compare(case)
    except hf.Crashed as reason:
        pytest.skip(f"known: {reason}")
    batch = run.traces[-1]  # the longest
    probs = [value for name, value in batch.mine.items() if name.endswith("attn.probs")]
    if not probs:
        pytest.skip("no softmax, no attention")
    last = [p[:, :, -1] for p in probs]  # the last query sees all keys, 45 mostly
    spread = torch.stack([p.clamp_min(1e-300).log().std(-1).mean() for p in last]).mean()
    assert spread > 1, f"the scores' standard deviation is {spread:.2f}"


def test_some_variant_has_more_than_ten_layers_and_all_have_several() -> None:
    """So that an order by text instead of by number shows, and so does one layer in the place of another."""
    broad = [each for each in VARIANTS if alone_in(*each) is None]
    configs = [vars(config_of(Case(family, variant, "f64", Backend("")))) for family, variant in broad]
    fields = ("n_layers", "n_encoder_layers", "n_decoder_layers")
    counts = [sum(config.get(field, 0) for field in fields) for config in configs]
    counts = [count for count in counts if count]  # a model of stages counts its layers otherwise
    assert max(counts) > 10
    assert min(counts) > 1
    assert max(config.get("n_experts", 0) for config in configs) > 10


def test_a_fixture_is_written_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_PARITY_CACHE", str(tmp_path))
    tiny.path_of.cache_clear()
    try:
        folder = tiny.path_of("llama", "gqa")
        assert folder.is_relative_to(tmp_path)
        before = (folder / "model.safetensors").stat().st_mtime_ns
        tiny.path_of.cache_clear()
        assert (tiny.path_of("llama", "gqa") / "model.safetensors").stat().st_mtime_ns == before
        assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"
        assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    finally:
        tiny.path_of.cache_clear()
