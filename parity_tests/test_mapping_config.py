"""Configs of both generations and of published models, read and written. transformers is the second witness."""

import copy
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from parity_tests.harness import hf
from parity_tests.harness.record import Known
from parity_tests.tiny_checkpoints import (
    CONFIG,
    DEEPSEEK,
    DEEPSEEK_VARIANTS,
    VARIANTS,
    empty_model,
    in_memory,
    on_disk,
)
from weight_mapping import MappingError
from weight_mapping.config import parse_config, render_config
from weight_mapping.loading import plan_for

ALL_VARIANTS = {**VARIANTS, **DEEPSEEK_VARIANTS}
BASES: dict[str, dict[str, Any]] = {"llama": CONFIG, "deepseek_v3": DEEPSEEK}
ROTARY: dict[str, Any] = {"llama": LlamaRotaryEmbedding, "deepseek_v3": DeepseekV3RotaryEmbedding}
PUBLISHED = sorted((Path(__file__).parent / "fixtures/configs/published").glob("*.json"))

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
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0, 1.1, 1.25, 2],
        "long_factor": [1, 2.5, 4.0, 8.0],
        "original_max_position_embeddings": 32,
    },
    "longrope-all-keys": {
        "rope_type": "longrope",
        "short_factor": [1.0, 1.1, 1.25, 2.0],
        "long_factor": [1.0, 2.5, 4.0, 8.0],
        "original_max_position_embeddings": 32,
        "factor": 3.0,
        "attention_factor": 1.5,
    },
    "longrope-factor": {
        "rope_type": "longrope",
        "short_factor": [1.0, 1.1, 1.25, 2.0],
        "long_factor": [1.0, 2.5, 4.0, 8.0],
        "original_max_position_embeddings": 32,
        "factor": 3.0,
    },
    "longrope-no-original": {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "factor": 3.0},
    "longrope-shorter": {
        "rope_type": "longrope",
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 32,
        "factor": 0.5,
    },
}


@pytest.mark.parametrize("family", BASES)
def test_defaults_are_those_of_transformers(family: str) -> None:
    theirs = AutoConfig.for_model(family)
    _, said = parse_config(json.loads(theirs.to_json_string(use_diff=False)), "hf")
    assert parse_config({"model_type": family}, "hf")[1] == said

UNTIL_5 = Known(name="nulls and longrope are read otherwise", sites=(), until="5.0.0", link="measured with 4.57.6")
READ_OTHERWISE = {
    "yarn-nulls": "as it is",
    "longrope": "as it is",
    "longrope-factor": "as it is, and as we write it",
    "longrope-no-original": "as we write it",
    "longrope-shorter": "as we write it",
}
"""Of which transformers 4 makes another amplitude, or fails. What helps the second, an original length at the top, spoils the
last two, whose factor then is another.
"""


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
    ]
    if not (scaling == SCALINGS["yarn-nulls"] and UNTIL_5.in_release(hf.VERSION)):
        spellings.append(json.loads(AutoConfig.for_model(**copy.deepcopy(spellings[0])).to_json_string()))
    configs = [parse_config(raw, "hf")[1] for raw in spellings]
    assert all(config == configs[0] for config in configs)


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_rope_is_read_as_transformers_reads_it(scaling: str, base: dict[str, Any]) -> None:
    raw = {**base, "rope_scaling": SCALINGS[scaling]}
    family, config = parse_config(raw, "hf")
    rope = vars(config)["rope"]

    def read(raw: dict[str, Any]) -> None:
        theirs = ROTARY[base["model_type"]](AutoConfig.for_model(**copy.deepcopy(raw)))
        assert torch.equal(rope.scaling.frequencies(rope.theta, rope.width, 32), theirs.inv_freq)
        assert rope.scaling.amplitude() == theirs.attention_scaling

    otherwise = READ_OTHERWISE.get(scaling, "") if UNTIL_5.in_release(hf.VERSION) else ""
    for name, said in {"as it is": raw, "as we write it": render_config(family, config, torch.float32)}.items():
        with pytest.raises((TypeError, AssertionError)) if name in otherwise else nullcontext():
            read(said)


def test_longrope_says_its_original_length_where_transformers_4_looks_for_it() -> None:
    family, config = parse_config({**CONFIG, "rope_scaling": SCALINGS["longrope"]}, "hf")
    written = render_config(family, config, torch.float32)
    assert written["original_max_position_embeddings"] == 32  # and, as transformers 5 wants it, with the rest:
    assert written["rope_scaling"] == {**(SCALINGS["longrope"] or {}), "type": "longrope", "factor": 2.0}


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
    theirs = on_disk(in_memory(empty_model(raw)), raw["model_type"])
    assert {name: t.shape for name, t in sources.items()} == {name: t.shape for name, t in theirs.items()}
    again = render_config(family, config, torch.bfloat16)
    assert parse_config(again, "hf")[1] == config


def test_keys_that_mean_nothing_are_passed_over() -> None:
    harmless = {"use_cache": True, "torch_dtype": "bfloat16", "pad_token_id": None, "pretraining_tp": 1}
    smollm2 = {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"dtype": "q4"}}
    assert parse_config({**CONFIG, **harmless, **smollm2}, "hf") == parse_config(CONFIG, "hf")


# --- DeepSeek-V3


def test_keys_of_every_deepseek_release() -> None:
    r1 = {"auto_map": {"AutoModel": "x.Y"}, "aux_loss_alpha": 0.001, "seq_aux": True, "ep_size": 1, "pretraining_tp": 1}
    v3 = {"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "num_nextn_predict_layers": 1}
    v5 = {"head_dim": 8, "qk_head_dim": 14, "num_local_experts": 12, "num_mtp_layers": 1, "output_router_logits": False}
    assert parse_config({**DEEPSEEK, **r1, **v3, **v5}, "hf") == parse_config(DEEPSEEK, "hf")


def test_pairing_follows_rope_interleave() -> None:
    for interleaved, pairing in {True: "gathered", False: "halves"}.items():
        family, config = parse_config({**DEEPSEEK, "rope_interleave": interleaved}, "hf")
        assert vars(config)["rope"].pairing == pairing
        assert render_config(family, config, torch.bfloat16)["rope_interleave"] is interleaved


WRONG_CONFIGS = {
    "softmax": ({"scoring_func": "softmax"}, 'scoring_func is "softmax", and only "sigmoid" is supported'),
    "greedy": ({"topk_method": "greedy"}, 'topk_method is "greedy", and only "noaux_tc" is supported'),
    "every-second": ({"moe_layer_freq": 2}, "moe_layer_freq is 2, and only 1 is supported"),
    "kv-heads": ({"num_key_value_heads": 2}, "num_key_value_heads is 2, and 4 follows from the other keys"),
    "head_dim": ({"head_dim": 14}, "head_dim is 14, and 8 follows from the other keys"),
    "qk_head_dim": ({"qk_head_dim": 8}, "qk_head_dim is 8, and 14 follows from the other keys"),
    "two-counts": ({"num_local_experts": 8}, "num_local_experts 8 contradicts n_routed_experts 12"),
    "groups": ({"n_group": 5}, "n_routed_experts 12 is no multiple of n_group 5"),
    "one-a-group": ({"n_group": 12}, "n_routed_experts 12 leaves n_group 12 with one each"),
    "top-groups": ({"topk_group": 5}, "topk_group 5 is more than n_group 4"),
    "top-k": (
        {"num_experts_per_tok": 7},
        "num_experts_per_tok 7 is more than the experts in topk_group 2 of n_group 4",
    ),
    "odd-rope": ({"qk_rope_head_dim": 7}, "qk_rope_head_dim 7 is odd, and RoPE turns pairs"),
    "no-shared": ({"n_shared_experts": None}, "n_shared_experts is null and must be a whole number above 0"),
    "no-experts": ({"n_routed_experts": None}, "n_routed_experts is null and must be a whole number above 0"),
    "null-interleave": ({"rope_interleave": None}, "rope_interleave is null and must be true or false"),
    "no-latent": ({"q_lora_rank": 0}, "q_lora_rank is 0 and must be a whole number above 0, up to"),
    "dense": ({"first_k_dense_replace": -1}, "first_k_dense_replace is -1 and must be a whole number of 0 or more"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG_CONFIGS.values(), ids=WRONG_CONFIGS)
def test_wrong_deepseek_config(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MappingError) as error:
        parse_config({**DEEPSEEK, **changes}, "hf")
    assert str(error.value).startswith(f"config.json: {message}")
