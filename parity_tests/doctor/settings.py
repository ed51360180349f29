"""Repairs of the config: other values under which the same tensors make a model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from parity_tests.doctor.patient import Patient
from parity_tests.doctor.repair import Repair
from reference_impl.ffn import ACTIVATIONS
from reference_impl.position import RopeConfig
from reference_impl.rope_scaling import Linear, Llama3, Unscaled
from weight_mapping import MappingError
from weight_mapping.config import render_config
from weight_mapping.errors import shown
from weight_mapping.loading import parameters_of
from weight_mapping.rope import LLAMA3S_OWN

SCALING = "rope_scaling"
THETAS = (1e4, 1e5, 5e5, 1e6, 1e7)
EPS = (1e-12, 1e-6, 1e-5)
WIDTHS = (8, 16, 32, 64, 80, 96, 128, 192, 256)
"""Values that published models have: of RoPE's base, of what norms add, and of a head's width."""


def repairs(patient: Patient) -> Iterator[Repair]:
    """Every other value of the config that this model could need, with which it has the same tensors."""
    shapes = _shapes(patient, patient.config)
    for config, far in _others(patient):
        if config != patient.config and _possible(patient, config) and _shapes(patient, config) == shapes:
            differences = _differences(patient, config)
            name = ", ".join(f"{key} {own} for {value}" for key, own, value in differences)
            so = "the config should say " + ", ".join(f"{key} {value}" for key, _, value in differences)
            yield Repair(name=name, so=so, apply=lambda p, c=config: replace(p, config=c), far=far)


def _differences(patient: Patient, other: Any) -> list[tuple[str, str, str]]:
    """What another config says otherwise: the key of config.json, this one's value, the other's."""
    spelled = patient.family.layouts["hf"].spelled
    found = []
    for field in dataclasses.fields(other):
        own, value = getattr(patient.config, field.name), getattr(other, field.name)
        if isinstance(value, RopeConfig):
            rope = ((name, vars(own)[name], x) for name, x in vars(value).items() if name != "width")
            found += [(SCALING if name == "scaling" else spelled(f"rope.{name}"), was, x) for name, was, x in rope]
        else:
            found.append((spelled(field.name), own, value))
    return [(key, _number(own), _number(value)) for key, own, value in found if own != value]


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if type(value) is Unscaled:
        return "null"
    if isinstance(value, Unscaled):
        parts = ", ".join(f"{name} {_number(x)}" for name, x in vars(value).items())
        return f"{type(value).__name__.lower()}{f' ({parts})' if parts else ''}"
    return value if isinstance(value, str) else shown(value)


def _possible(patient: Patient, config: Any) -> bool:
    return all(check.holds(vars(config)) for check in patient.family.checks)


def _shapes(patient: Patient, config: Any) -> dict[str, torch.Size] | None:
    try:
        with torch.device("meta"):
            return {name: t.shape for name, t in parameters_of(patient.family.model(config)).items()}
    except (ValueError, RuntimeError, KeyError):  # no such model
        return None


def _others(patient: Patient) -> Iterator[tuple[Any, bool]]:
    """Configs with something else, and whether it shows between distant tokens alone."""
    config = patient.config
    names = [field.name for field in dataclasses.fields(config) if field.name != "tied_head"]
    if "rope" in names:
        yield from ((replace(config, rope=rope), True) for rope in _ropes(config.rope))
    for eps in EPS if "norm_eps" in names else ():
        if not math.isclose(eps, config.norm_eps, rel_tol=1e-6):  # GGUF's is of 32 bits
            yield replace(config, norm_eps=eps), False
    for other in _activations(config.activation) if "activation" in names else ():
        yield replace(config, activation=other), False
    if getattr(config, "window", None) is not None:
        yield replace(config, window=None), True
    yield from ((other, False) for other in _heads(config, names))
    for name in names:
        if type(value := getattr(config, name)) is bool:
            yield replace(config, **{name: not value}), False
    if type(k := getattr(config, "top_k", None)) is int:
        yield from ((replace(config, top_k=n), False) for n in (k - 1, k + 1, 2 * k) if 0 < n <= config.n_experts)


def _ropes(rope: RopeConfig) -> Iterator[RopeConfig]:
    yield from (replace(rope, theta=theta) for theta in THETAS if not math.isclose(theta, rope.theta, rel_tol=1e-6))
    if type(rope.scaling) is not Unscaled:
        yield replace(rope, scaling=Unscaled())
        return
    yield from (replace(rope, scaling=Linear(factor=factor)) for factor in (2.0, 4.0, 8.0))
    yield replace(rope, scaling=Llama3(factor=8.0, **LLAMA3S_OWN))


def _activations(own: str) -> list[str]:
    """One name of each that is another function than this."""
    names = {function: name for name, function in reversed(ACTIVATIONS.items())}
    return [name for function, name in names.items() if function is not ACTIVATIONS.get(own)]


def _heads(config: Any, names: Sequence[str]) -> Iterator[Any]:
    """The same rows cut into other heads."""
    if "n_heads" not in names:
        return
    width = config.d_head if "d_head" in names else config.d_model // config.n_heads
    for other in WIDTHS:
        q, kv = config.n_heads * width, getattr(config, "n_kv_heads", config.n_heads) * width
        if other == width or q % other or kv % other:
            continue
        changed: dict[str, Any] = {"n_heads": q // other}
        if "n_kv_heads" in names:
            changed["n_kv_heads"] = kv // other
        if "d_head" in names:
            changed["d_head"] = other
        if "rope" in names:
            changed["rope"] = replace(config.rope, width=other)
        yield replace(config, **changed)


def writable(patient: Patient) -> str | None:
    """Why a patient cannot be written as a checkpoint; None where it can."""
    if patient.departures:
        names = " and ".join(departure.name for departure in patient.departures)
        return f"no order of weights and no key of a config says {names!r}: mend what wrote the file"
    try:
        render_config(patient.family, patient.config, torch.float32)
    except MappingError as error:
        return str(error)
    return None
