"""Departures of RoPE's scalings, and what releases do with their spellings: one list, as the fixtures are made of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from parity_tests.families.deviations import Change, each, with_rope
from parity_tests.fixtures.scalings import ORIGINAL
from parity_tests.harness.record import CONFIG_ALONE, FOUND_HERE, LOADING, Alone, Deviation, Known
from reference_impl.decoder import Decoder
from reference_impl.position import RopeConfig, RotaryEmbedding
from reference_impl.rope_scaling import Divided, DynamicNTK, Llama3, LongRoPE, Unscaled, YaRN, inverse_frequencies

Raw = Mapping[str, Any]
"""config.json."""

ALONE = Alone(variants=("rope-*",), sites=("rope.*", "attn.keys", "attn.rope_key", "attn.probs", "attn", "logits"))
"""A scaling shows in the tables, and in what is made with them."""

SCALED = ("rope-linear*", "rope-dynamic*", "rope-yarn*", "rope-llama3*", "rope-longrope*")
YARNS = ("rope-yarn*", "yarn")


class _WithScaling:
    """A scaling with one method replaced."""

    def __init__(self, scaling: Unscaled, **methods: Any):
        self.__dict__.update({"frequencies": scaling.frequencies, "amplitude": scaling.amplitude, **methods})


def _scaling(kind: type[Unscaled], change: Callable[[Any], dict[str, Any]]) -> Change:
    def apply(module: RotaryEmbedding) -> None:
        scaling = module.config.scaling
        if isinstance(scaling, kind):
            replaced = object.__new__(RopeConfig)  # past the type check: a stand-in is no scaling of the reference
            values = {**vars(module.config), "scaling": _WithScaling(scaling, **change(scaling))}
            replaced.__dict__.update(values)
            module.config = replaced

    return each(RotaryEmbedding, apply)


def _set(kind: type[Unscaled], **changes: Callable[[Any], Any]) -> Change:
    """Fields of a scaling of this kind, each from the model."""

    def change(model: Decoder) -> None:
        scaling = model.rope.config.scaling
        if isinstance(scaling, kind):
            with_rope(scaling=replace(scaling, **{name: of(model) for name, of in changes.items()}))(model)

    return each(Decoder, change)


def _set_unscaled(kind: type[Unscaled]) -> Change:
    def change(module: RotaryEmbedding) -> None:
        if isinstance(module.config.scaling, kind):
            with_rope(scaling=Unscaled())(module)

    return each(RotaryEmbedding, change)


def _reach(model: Any) -> int:
    return model.config.max_positions


def _hard_step(scaling: Llama3) -> dict[str, Any]:
    def frequencies(theta: float, width: int, length: int) -> Tensor:
        plain = inverse_frequencies(theta, width)
        slow = 2 * torch.pi / plain > scaling.original_positions / scaling.low_freq_factor
        return torch.where(slow, plain / scaling.factor, plain)

    return {"frequencies": frequencies}


def _everything_interpolated(scaling: YaRN) -> dict[str, Any]:
    return {"frequencies": lambda theta, width, length: inverse_frequencies(theta, width) / scaling.factor}


def _stretched_at_every_length(scaling: DynamicNTK) -> dict[str, Any]:
    def frequencies(theta: float, width: int, length: int) -> Tensor:
        return inverse_frequencies(theta * scaling.factor ** (width / (width - 2)), width)

    return {"frequencies": frequencies}


def _amplitude_of_one(_: Unscaled) -> dict[str, Any]:
    return {"amplitude": lambda: 1.0}


def _deviation(name: str, apply: Change, *variants: str) -> Deviation:
    return Deviation(name=name, site="rope.cos", apply=apply, variants=variants)


DEVIATIONS = (
    _deviation("RoPE's scaling is ignored", with_rope(scaling=Unscaled()), *SCALED, "yarn"),
    _deviation("YaRN's attention factor is left out", _scaling(YaRN, _amplitude_of_one), *YARNS),
    _deviation("YaRN interpolates every pair", _scaling(YaRN, _everything_interpolated), *YARNS),
    _deviation(
        "YaRN's factor replaced by max / original",
        _set(YaRN, factor=lambda model: _reach(model) / model.rope.config.scaling.original_positions),
        *YARNS,
    ),
    _deviation("YaRN's ramp from max_position_embeddings", _set(YaRN, original_positions=_reach), *YARNS),
    _deviation("YaRN's ramp rounded though truncate is false", _set(YaRN, rounded=lambda _: True), "rope-yarn-unrounded*"),
    _deviation("attention_factor is not read", _set(YaRN, attention_factor=lambda _: None), "rope-yarn-temperature*"),
    _deviation(
        "YaRN's mscale does not reach cos and sin",
        _set(YaRN, mscale=lambda _: None, mscale_all_dim=lambda _: None),
        "rope-yarn-mscale*",
        "yarn",
    ),
    _deviation(
        "dynamic NTK stretches at every length alike", _scaling(DynamicNTK, _stretched_at_every_length), "rope-dynamic*"
    ),
    _deviation("llama3 scaling without the blend between its bands", _scaling(Llama3, _hard_step), "rope-llama3*"),
    _deviation(
        "longrope changes its factors, and takes its attention factor, by max_position_embeddings",
        _set(LongRoPE, original_positions=_reach),
        "rope-longrope*",
    ),
    _deviation(
        "longrope's long factors at every length",
        _set(LongRoPE, short_factor=lambda model: model.rope.config.scaling.long_factor),
        "rope-longrope*",
    ),
    _deviation(
        "longrope's short factors at every length",
        _set(LongRoPE, long_factor=lambda model: model.rope.config.scaling.short_factor),
        "rope-longrope*",
    ),
    _deviation("longrope's attention factor is left out", _scaling(LongRoPE, _amplitude_of_one), "rope-longrope*"),
    _deviation(
        "longrope's attention_factor is not read", _set(LongRoPE, attention_factor=lambda _: None), "rope-longrope-temperature*"
    ),
)


def not_read(theta: float) -> Deviation:
    """rope_parameters, in a family of this default theta."""
    unread = with_rope(theta=theta, scaling=Unscaled())
    return _deviation("rope_parameters is not read", unread, "rope-*-parameters")


def _is(*kinds: type[Unscaled]) -> Callable[[Any], bool]:
    """Of configs that scale RoPE in one of these ways."""
    return lambda config: isinstance(config.rope.scaling, kinds)


def _rope(raw: Raw) -> Raw:
    return raw.get("rope_scaling") or {}


def _original_inside(raw: Raw) -> bool:
    return ORIGINAL in _rope(raw) and ORIGINAL not in raw


def _original_beside(raw: Raw) -> bool:
    return ORIGINAL in raw and ORIGINAL not in _rope(raw)


def _no_width(raw: Raw) -> bool:
    return raw.get("head_dim") is None


def without_a_width(until: str | None) -> tuple[Known, ...]:
    """Of a family whose config class leaves `head_dim` null."""

    def raises(error: str, *kinds: type[Unscaled], since: str = "0", until: str | None = until) -> Known:
        return Known(
            name=f"without head_dim, RoPE scaled by {' or '.join(kind.__name__ for kind in kinds)} raises",
            sites=(LOADING,),
            since=since,
            until=until,
            where=_is(*kinds),
            says=_no_width,
            link=FOUND_HERE,
            raises=error,
        )

    before = (raises("TypeError", LongRoPE, until="5.0.0"), raises("TypeError", DynamicNTK, YaRN))
    checked = raises("StrictDataclassClassValidationError", LongRoPE, since="5.0.0")
    return before if until == "5.0.0" else (*before, checked)


DIVISORS_DROPPED = Deviation(
    name="the divisors of the frequencies are dropped",
    site="rope.cos",
    apply=_set_unscaled(Divided),
    variants=("*.gguf",),
)
DIVISORS_KNOWN = Known(
    name="GGUF's divisors of the frequencies are dropped",
    smallest="`rope_freqs.weight` of `[1, 8]`, heads of width 4",
    sites=("rope.cos", "rope.sin"),
    where=_is(Divided),
    link=FOUND_HERE,
    explained="the divisors of the frequencies are dropped",
)
"""Of families whose GGUF files hold some. No fixture is a GGUF file: `test_findings.py` shows both."""

MEASURED = "measured with 4.57.6"


def _not_read(raw: Raw) -> bool:
    return "rope_parameters" in raw and not {"rope_theta", "rope_scaling"} & set(raw)


KNOWN = (
    Known(
        name="YaRN's factor is replaced by max / original",
        sites=("rope.cos", "rope.sin"),
        since="4.51.0",
        until="4.56.0",
        where=_is(YaRN),
        link="https://github.com/huggingface/transformers/pull/40320",
        explained="YaRN's factor replaced by max / original",
    ),
    Known(
        name="YaRN ignores original_max_position_embeddings",
        sites=("rope.cos", "rope.sin"),
        until="4.51.0",
        where=_is(YaRN),
        link="no issue known",
        explained="YaRN's ramp from max_position_embeddings",
    ),
    Known(
        name="YaRN looks for original_max_position_embeddings inside rope_scaling alone",
        sites=("rope.cos", "rope.sin"),
        since="4.51.0",
        until="5.0.0",
        where=_is(YaRN),
        says=_original_beside,
        link=MEASURED,
        explained="YaRN's ramp from max_position_embeddings",
    ),
    Known(
        name="longrope looks for original_max_position_embeddings beside rope_scaling alone",
        sites=("rope.cos", "rope.sin"),
        until="5.0.0",
        where=_is(LongRoPE),
        says=lambda raw: _original_inside(raw) and "factor" in _rope(raw),
        link=MEASURED,
        explained="longrope changes its factors, and takes its attention factor, by max_position_embeddings",
    ),
    Known(
        name="llama3 with the original length beside rope_scaling raises",
        sites=(LOADING,),
        until="5.0.0",
        where=_is(Llama3),
        says=_original_beside,
        link=MEASURED,
        raises="KeyError",
    ),
    Known(
        name="rope_parameters is not read, though transformers 5 writes nothing else: neither theta nor the scaling arrives",
        sites=("rope.cos", "rope.sin"),
        until="5.0.0",
        says=_not_read,
        link=MEASURED,
        explained="rope_parameters is not read",
    ),
    Known(
        name="rope_parameters is kept in the config, and beside it stands the default of theta",
        sites=("config",),
        until="5.0.0",
        says=_not_read,
        link=MEASURED,
        unexplained=CONFIG_ALONE,
    ),
)

WITHOUT_A_FACTOR = Known(
    name="longrope without a factor, and with the original length inside rope_scaling, raises",
    sites=(LOADING,),
    until="5.0.0",
    where=_is(LongRoPE),
    says=lambda raw: _original_inside(raw) and "factor" not in _rope(raw),
    link=MEASURED,
    raises="TypeError",
)
"""Of all families but one, which raises for want of a factor before."""
