"""Sliding windows in configs: Qwen's four keys for how far a query sees, and in which layers."""

from collections.abc import Callable, Mapping
from typing import Any

from weight_mapping.container import Value
from weight_mapping.family import COUNT_OR_NULL, FLAG, WHOLE, Check, Default, Fields, Key, Kind

_TYPES = ("full_attention", "sliding_attention")


def _read_types(value: Value) -> Any:
    return tuple(value) if isinstance(value, list) and all(name in _TYPES for name in value) else None


_LAYER_TYPES = Kind(f"a list of {' and '.join(map(repr, _TYPES))}", _read_types)

HF_WINDOW_KEYS = {
    "use_sliding_window": Key("window.used", FLAG),
    "sliding_window": Key("window.size", COUNT_OR_NULL),
    "max_window_layers": Key("window.n_without", WHOLE),
    "layer_types": Key("window.layer_types", _LAYER_TYPES),  # since transformers 4.53, and it has the last word
}
"""What a config says of windows; its fields `window` and `window_layers` follow, and where none is used say nothing."""


def _types(f: Fields) -> Any:
    used = f["window.used"] and f["window.size"] is not None
    return tuple(_TYPES[used and layer >= f["window.n_without"]] for layer in range(f["n_layers"]))


def _layers(f: Fields) -> Any:
    """The layers with a window; None when the config contradicts itself."""
    found = tuple(layer for layer, name in enumerate(f["window.layer_types"]) if name == _TYPES[1])
    used = f["window.used"] and f["window.size"] is not None
    return found if len(f["window.layer_types"]) == f["n_layers"] and (used or not found) else None


HF_WINDOW_DEFAULTS: Mapping[str, Default] = {
    "window.used": False,
    "window.size": 4096,
    "window.n_without": 28,
    "window.layer_types": _types,
    "window_layers": _layers,
    "window": lambda f: f["window.size"] if f["window_layers"] else None,
}

NO_WINDOWS: Mapping[str, Any] = {"window": None, "window_layers": ()}
"""The defaults of a layout that has no word for them, and whose readers attend to everything."""

WINDOW_CHECK = Check(
    "layer_types must say of each of {n_layers} what it is, and sliding_attention only where use_sliding_window is true "
    "and sliding_window a number",
    lambda f: f["window_layers"] is not None,
)

HF_WINDOW_IMPLIED: Mapping[str, Callable[[Any], Value]] = {
    "use_sliding_window": lambda c: c.window is not None,
    "sliding_window": lambda c: c.window,
    "max_window_layers": lambda c: min(c.window_layers, default=c.n_layers),
    "layer_types": lambda c: [_TYPES[layer in c.window_layers] for layer in range(c.n_layers)],
}


def _all_alike(config: Any) -> Value:
    return [_TYPES[getattr(config, "window", None) is not None]] * config.n_layers


LAYERS_ALIKE: Mapping[str, Callable[[Any], Value]] = {"layer_types": _all_alike}
"""What `layer_types` says, where it is given, in a family whose layers all have the window or all have none."""
