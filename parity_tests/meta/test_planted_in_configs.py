"""A config that transformers resolves otherwise fails at the field, whatever the computation makes of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from parity_tests import test_configs
from parity_tests.families import FAMILIES
from parity_tests.harness import hf
from parity_tests.harness.case import Case, twin
from parity_tests.harness.recorder import Recorder
from parity_tests.harness.report import Result

FAULTS: dict[str, tuple[str, str, Any]] = {
    "rms_norm_eps": ("llama", "config.norm_eps", 0.1),
    "hidden_act": ("llama", "config.activation", "gelu"),
    "head_dim": ("qwen3", "config.d_head", 2),
    "tie_word_embeddings": ("gpt2", "config.tied_head", False),
    "num_experts_per_tok": ("mixtral", "config.top_k", 1),
    "norm_topk_prob": ("qwen3_moe", "config.normalised", None),
    "routed_scaling_factor": ("deepseek_v3", "config.scaling", 7.5),
    "relative_attention_max_distance": ("t5", "config.max_distance", 9),
    "scale_embedding": ("marian", "config.scaled_embedding", None),
    "layer_norm_eps": ("bert", "config.norm_eps", 0.1),
}
"""By transformers' name: a family, the site, and a wrong value; None turns a flag over."""


@pytest.mark.level("config")
@pytest.mark.parametrize("name", FAULTS)
def test_another_value_fails_at_its_field(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, site, value = FAULTS[name]
    record = FAMILIES[family]
    tested = Case(family, next(iter(record.variants)), "f64", record.backends[0])
    config = copy.deepcopy(twin(tested).config)
    setattr(config, name, not getattr(config, name) if value is None else value)
    said = hf.resolved(type("Model", (), {"config": config}))
    monkeypatch.setattr(hf, "resolved", lambda model: said)
    results: list[Result] = []
    with pytest.raises(pytest.fail.Exception, match="there, "):
        test_configs.test_config(tested, Recorder(request, results))
    assert [result.site for result in results if result.verdict == "differs"] == [site]
