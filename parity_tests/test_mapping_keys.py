"""Every key that configs are known to have is accounted for: read, implied by others, allowed at some values, or harmless."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from parity_tests import fixtures
from parity_tests.tiny_checkpoints import CONFIG
from weight_mapping import MappingError
from weight_mapping.config import is_accounted_for, parse_config
from weight_mapping.families import FAMILIES

SEEN: dict[str, dict[str, list[Any]]] = json.loads((Path(fixtures.__file__).parent / "configs" / "keys.json").read_text())
"""By family, the keys of config.json and values of theirs: all that the config classes of 4.57.6 and of 5.24.0 write, those
of the published configs beside this file, and what files of older and of other writers are known to have, written down from
memory and not collected. Long values are left out.
"""


def test_all_families_are_there() -> None:
    assert SEEN.keys() == FAMILIES.keys()


@pytest.mark.parametrize("family", SEEN)
def test_every_key_is_accounted_for(family: str) -> None:
    assert [key for key in SEEN[family] if not is_accounted_for(key, "hf", FAMILIES[family])] == []


@pytest.mark.parametrize("family", SEEN)
def test_every_value_where_a_key_may_have_only_some(family: str) -> None:
    only = FAMILIES[family].layouts["hf"].only
    refused = {key for key, values in SEEN[family].items() if key in only and any(v not in only[key] for v in values)}
    assert refused == set()


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_writes_is_read(family: str) -> None:
    """Not what differs from the defaults alone, as it saves, but all."""
    raw = json.loads(AutoConfig.for_model(family).to_json_string(use_diff=False))
    raw |= {"num_experts_per_tok": 2} if family == "deepseek_v2" else {}  # which its class leaves open
    assert parse_config(raw, "hf")[0] is FAMILIES[family]


SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
LIKE_LLAMA = {key: value for key, value in CONFIG.items() if key != "model_type"}
SLIDING, FULL = ["sliding_attention"] * 2, ["full_attention"] * 2

NOTHING_CHANGES: dict[str, dict[str, Any]] = {
    "auto_map": {"model_type": "llama", **LIKE_LLAMA, "auto_map": {"AutoModel": "modeling_llama.LlamaModel"}},
    "full-layers": {"model_type": "llama", **LIKE_LLAMA, "layer_types": FULL},
    "bidi": {"model_type": "bert", "directionality": "bidi", "pooler_type": "first_token_transform", "pooler_fc_size": 768},
    "all-sliding": {"model_type": "mistral", **LIKE_LLAMA, "sliding_window": 8, "layer_types": SLIDING},
    "none-sliding": {"model_type": "mistral", **LIKE_LLAMA, "sliding_window": None, "layer_types": FULL},
    "mixtral-none": {"model_type": "mixtral", **LIKE_LLAMA, "layer_types": FULL},
    "no-mrope": {"model_type": "qwen2", **SIZES, "use_mrope": False},
    "mamba_ssm": {"model_type": "mamba", "d_intermediate": 0, "attn_layer_idx": [], "attn_cfg": {}, "tie_embeddings": True},
    "from-4": {"model_type": "gpt2", "cross_attention_hidden_size": None, "tie_encoder_decoder": False, "prefix": None},
}
OTHERWISE = {
    "full-layers": ("layer_types", SLIDING),
    "bidi": ("directionality", "left-to-right"),
    "all-sliding": ("layer_types", FULL),
    "none-sliding": ("layer_types", ["full_attention", "sliding_attention"]),
    "mixtral-none": ("layer_types", SLIDING),
    "no-mrope": ("use_mrope", True),
    "mamba_ssm": ("attn_layer_idx", [3]),
    "from-4": ("cross_attention_hidden_size", 8),
}
"""Values of the same keys at which something would."""


@pytest.mark.parametrize("raw", NOTHING_CHANGES.values(), ids=NOTHING_CHANGES)
def test_keys_at_values_where_nothing_changes(raw: dict[str, Any]) -> None:
    bare = {key: value for key, value in raw.items() if key in {"model_type", "sliding_window", *LIKE_LLAMA, *SIZES}}
    assert parse_config(raw, "hf") == parse_config(bare, "hf")


@pytest.mark.parametrize("name", OTHERWISE)
def test_the_same_keys_where_something_would(name: str) -> None:
    key, value = OTHERWISE[name]
    with pytest.raises(MappingError, match=f"config.json: {key} is "):
        parse_config({**NOTHING_CHANGES[name], key: value}, "hf")


def test_unknown_keys_still_raise() -> None:
    with pytest.raises(MappingError, match="the key 'residual_scale' is unknown"):
        parse_config({**CONFIG, "residual_scale": 0.5}, "hf")
