"""Configs of both generations and of published models, read and written. transformers is the second witness."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from parity_tests.tiny_checkpoints import (
    CONFIG,
    DEEPSEEK,
    DEEPSEEK_VARIANTS,
    VARIANTS,
    empty_model,
    in_memory,
    on_disk,
)
from weight_mapping.config import parse_config, render_config
from weight_mapping.loading import plan_for

ALL_VARIANTS = {**VARIANTS, **DEEPSEEK_VARIANTS}
BASES: dict[str, dict[str, Any]] = {"llama": CONFIG, "deepseek_v3": DEEPSEEK}
ROTARY: dict[str, Any] = {"llama": LlamaRotaryEmbedding, "deepseek_v3": DeepseekV3RotaryEmbedding}
PUBLISHED = sorted((Path(__file__).parents[1] / "fixtures/configs/published").glob("*.json"))

SCALINGS: dict[str, dict[str, Any] | None] = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 3},
    "dynamic": {"rope_type": "dynamic", "factor": 2.5},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    "yarn-all-keys": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 4.0,
        "beta_slow": 0.5,
        "truncate": False,
        "attention_factor": 1.25,
    },
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "mscale": 0.7,
        "mscale_all_dim": 0.9,
    },
    "yarn-nulls": {
        "rope_type": "yarn",
        "factor": None,
        "original_max_position_embeddings": 32,
        "beta_fast": None,
        "beta_slow": 0,
        "attention_factor": None,
    },
    "yarn-no-original": {"rope_type": "yarn", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}


@pytest.mark.parametrize("family", BASES)
def test_defaults_are_those_of_transformers(family: str) -> None:
    theirs = AutoConfig.for_model(family)
    _, said = parse_config(json.loads(theirs.to_json_string(use_diff=False)), "hf")
    assert parse_config({"model_type": family}, "hf")[1] == said


@pytest.mark.parametrize("config", BASES.values(), ids=BASES)
@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_both_generations_give_one_config(scaling: dict[str, Any] | None, config: dict[str, Any]) -> None:
    base = {key: value for key, value in config.items() if key != "rope_theta"}
    typed = scaling and {("type" if key == "rope_type" else key): value for key, value in scaling.items()}
    spellings = [
        {**config, "rope_scaling": scaling},
        {**config, "rope_scaling": typed},
        {**config, "rope_scaling": scaling and {**scaling, **(typed or {})}},
        {**base, "rope_parameters": {"rope_type": "default", **(scaling or {}), "rope_theta": 5000}},
        {**config, "rope_parameters": {**(scaling or {}), "rope_theta": 5000.0}},
        json.loads(AutoConfig.for_model(**{**config, "rope_scaling": scaling and dict(scaling)}).to_json_string()),
    ]
    configs = [parse_config(raw, "hf")[1] for raw in spellings]
    assert all(config == configs[0] for config in configs)


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_rope_is_read_as_transformers_reads_it(scaling: dict[str, Any] | None, base: dict[str, Any]) -> None:
    family, config = parse_config({**base, "rope_scaling": scaling}, "hf")
    rope, rewritten = vars(config)["rope"], render_config(family, config, torch.float32)
    for raw in ({**base, "rope_scaling": scaling}, rewritten):
        theirs = ROTARY[base["model_type"]](AutoConfig.for_model(**json.loads(json.dumps(raw))))
        assert torch.equal(rope.scaling.frequencies(rope.theta, rope.width, 64), theirs.inv_freq)
        assert rope.scaling.amplitude() == theirs.attention_scaling


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
@pytest.mark.parametrize("variant", ALL_VARIANTS.values(), ids=ALL_VARIANTS)
def test_a_config_survives_being_written(variant: dict[str, Any], scaling: dict[str, Any] | None) -> None:
    family, config = parse_config({**variant, "rope_scaling": scaling}, "hf")
    assert parse_config(render_config(family, config, torch.float32), "hf") == (family, config)


@pytest.mark.parametrize("file", PUBLISHED, ids=lambda file: file.stem)
def test_published_sizes(file: Path) -> None:
    raw = {key: value for key, value in json.loads(file.read_text()).items() if key != "quantization_config"}
    family, config = parse_config(raw, "hf")
    sources = plan_for(family, config, "hf").sources
    theirs = on_disk(in_memory(empty_model(raw)))
    assert {name: t.shape for name, t in sources.items()} == {name: t.shape for name, t in theirs.items()}
    again = render_config(family, config, torch.bfloat16)
    assert parse_config(again, "hf")[1] == config


def test_keys_that_mean_nothing_are_passed_over() -> None:
    harmless = {"use_cache": True, "torch_dtype": "bfloat16", "pad_token_id": None, "pretraining_tp": 1}
    smollm2 = {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"dtype": "q4"}}
    assert parse_config({**CONFIG, **harmless, **smollm2}, "hf") == parse_config(CONFIG, "hf")
