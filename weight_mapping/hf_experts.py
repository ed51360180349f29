"""A layer's experts, which files hold apart, one tensor a matrix of each, and transformers 5 has in two tensors in memory;
and the keys that say which layers have some.
"""

from collections.abc import Mapping
from typing import Any

from weight_mapping.family import COUNT, Key, Kind
from weight_mapping.rules import Concatenate, Rule, Stack, rename

GATE, UP, DOWN = "gate_proj", "up_proj", "down_proj"


def apart(here: str, there: str, d_ff: int, names: tuple[str, str, str] = (GATE, UP, DOWN)) -> tuple[Rule, ...]:
    """One tensor a matrix, `here` holding {expert}. names: of gate, up and down; Mixtral's are w1, w3 and w2."""
    gate, up, down = (f"{here}.{name}.weight" for name in names)
    joined = Concatenate((d_ff, d_ff), dim=1)
    return (
        Rule((gate, up), (f"{there}.gate_up_proj",), (Stack(into=2), joined)),
        rename(down, f"{there}.down_proj", Stack()),
    )


def together(here: str, there: str) -> tuple[Rule, ...]:
    """(x, 2f, d) and (x, d, f), as the reference has them."""
    return tuple(rename(f"{here}.{name}", f"{there}.{name}") for name in ("gate_up_proj", "down_proj"))


_LAYERS = Kind(
    "a list of layers, which count from 0",
    lambda v: tuple(v) if isinstance(v, list) and all(type(n) is int and n >= 0 for n in v) else None,
    list,
)

SPARSE_LAYER_KEYS = {
    "decoder_sparse_step": Key("sparse_step", COUNT),
    "mlp_only_layers": Key("dense_layers", _LAYERS),
}
"""Qwen's, for which layers have experts."""

SPARSE_LAYER_DEFAULTS: Mapping[str, Any] = {"sparse_step": 1, "dense_layers": ()}
