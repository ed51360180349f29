"""Which layers have a window, by Qwen's keys: read, written, and refused where they contradict each other."""

import json
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from weight_mapping import MappingError
from weight_mapping.config import parse_config, render_config

FULL, SLIDING = "full_attention", "sliding_attention"
COMMON = {"hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2}
WINDOWS: dict[str, tuple[dict[str, Any], list[int | None]]] = {
    "unused": ({"use_sliding_window": False, "sliding_window": 5, "max_window_layers": 0}, [None] * 4),
    "unsaid": ({"sliding_window": 5, "max_window_layers": 0}, [None] * 4),
    "no-size": ({"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, [None] * 4),
    "last-two": ({"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}, [None, None, 5, 5]),
    "all": ({"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}, [5] * 4),
    "none-left": ({"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 4}, [None] * 4),
    "default-size": ({"use_sliding_window": True, "max_window_layers": 3}, [None, None, None, 4096]),
    "named": (
        {
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 0,
            "layer_types": [SLIDING, FULL, FULL, SLIDING],
        },
        [5, None, None, 5],
    ),
    "named-and-unused": ({"use_sliding_window": False, "layer_types": [FULL] * 4}, [None] * 4),
}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "too-few": ({"use_sliding_window": True, "layer_types": [FULL, SLIDING]}, "layer_types must say of each of num_hidden"),
    "unused": ({"use_sliding_window": False, "layer_types": [SLIDING] * 4}, "layer_types must say of each of num_hidden"),
    "no-size": (
        {"use_sliding_window": True, "sliding_window": None, "layer_types": [SLIDING] * 4},
        "layer_types must say of each of num_hidden_layers 4",
    ),
    "other-type": ({"layer_types": [FULL, FULL, FULL, "chunked_attention"]}, "layer_types is ["),
    "nought": ({"use_sliding_window": True, "sliding_window": 0}, "sliding_window is 0 and must be a whole number above 0"),
}


def windows_of(config: Any) -> list[int | None]:
    return [config.window if layer in config.window_layers else None for layer in range(config.n_layers)]


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize(("said", "windows"), WINDOWS.values(), ids=WINDOWS)
def test_windows_are_read_as_transformers_reads_them(family: str, said: dict[str, Any], windows: list[int | None]) -> None:
    raw = {"model_type": family, **COMMON, **said}
    record, config = parse_config(raw, "hf")
    assert windows_of(config) == windows
    rewritten = render_config(record, config, torch.float32)
    assert parse_config(rewritten, "hf")[1] == config
    for source in (raw, rewritten):
        theirs = AutoConfig.for_model(**json.loads(json.dumps(source)))
        assert [theirs.sliding_window if name == SLIDING else None for name in theirs.layer_types] == windows


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize(("said", "message"), WRONG.values(), ids=WRONG)
def test_contradictions_are_refused(family: str, said: dict[str, Any], message: str) -> None:
    with pytest.raises(MappingError) as error:
        parse_config({"model_type": family, **COMMON, **said}, "hf")
    assert str(error.value).startswith(f"config.json: {message}")


@pytest.mark.parametrize("size", [None, 1, 7])
def test_mistral_has_one_window_for_all_layers(size: int | None) -> None:
    record, config = parse_config({"model_type": "mistral", **COMMON, "sliding_window": size}, "hf")
    assert vars(config)["window"] == size
    rewritten = render_config(record, config, torch.float32)
    assert AutoConfig.for_model(**json.loads(json.dumps(rewritten))).sliding_window == size
    assert record.model(config).windows == [size] * 4
