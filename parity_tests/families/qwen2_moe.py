"""Qwen1.5-MoE and Qwen2-57B-A14B."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from parity_tests.families import beside, siblings
from parity_tests.families import deviations as shared
from parity_tests.families import moe_deviations as mixtures
from parity_tests.families import scaling_deviations as scalings
from parity_tests.families import window_deviations as windows
from parity_tests.families.moe_units import mixture
from parity_tests.families.units import LAYER_MASK, LLAMA_LAYER, decoder_units
from parity_tests.fixtures import qwen2_moe as tiny
from parity_tests.harness.record import AS_ONE_READS, CONFIG_ALONE, LOADING, PUBLISHED, Backend, Family, Known
from reference_impl.models.qwen2_moe import Qwen2MoeLayer

AGREED = ("base", "steps", "bare", "window")  # all but those in which transformers goes its own way
EVERY, OTHERS, _ = windows.window_layers(("window", "top-layers"))


def is_sparse(config: Any, layer: int) -> bool:
    """Whether a layer has experts."""
    return config.is_sparse(layer)


CACHES = (
    *("dynamic.steps", "dynamic.chunks", "dynamic.steps.held", "dynamic.chunks.held"),
    *("cache.held", "cache.training", "load-balancing.step"),
    *("greedy", "prefilled", "left-padded", "left-padded.alone", "left-padded.equals-alone", "eos"),
)


def _several(config: Any) -> bool:
    return windows.within_reach(config) and config.window > 1


def counted(*sites: str, where: Callable[[Any], bool]) -> Known:
    """What the config itself says of max_window_layers."""
    return Known(
        name="max_window_layers counts the layers with a window, and layer_types says so",
        sites=sites,
        since="5.0.0",
        where=where,
        says=lambda raw: "layer_types" not in raw,
        link="no issue known",
        unexplained=CONFIG_ALONE,
    )


def _with_layer_types(raw: Mapping[str, Any]) -> bool:
    return "layer_types" in raw


def _without_layer_types(raw: Mapping[str, Any]) -> bool:
    return "layer_types" not in raw


def _one(config: Any) -> bool:
    return config.window == 1


def _static(name: str, *schedules: str, where: Callable[[Any], bool], **how: Any) -> Known:
    sites = tuple(f"static.{schedule}" for schedule in schedules)
    return Known(name=name, sites=sites, until="5.0.0", where=where, link=scalings.MEASURED, **how)


NO_ROOM = "a prompt longer than the window does not fit the mask that a static cache is given"
AS_WIDE = "a static cache is as wide as the window, and its mask as if it were not"
OVER_A_CACHE = (
    *(
        Known(
            name=deviation.name,
            sites=(*CACHES, *windows.AT_THE_EDGE),
            until="5.0.0",
            where=_several,
            says=says,
            link=scalings.MEASURED,
            explained=deviation.name,
            local=True,  # a static cache has its own
        )
        for deviation, says in zip(windows.FROM_THE_FIRST, (_without_layer_types, _with_layer_types), strict=True)
    ),
    Known(
        name="a dynamic cache of a window of one token holds everything, which the mask hides",
        sites=("dynamic.steps.held", "dynamic.chunks.held"),
        until="5.0.0",
        where=_one,
        link=scalings.MEASURED,
        unexplained="no result depends on it",
    ),
    _static(NO_ROOM, "steps", "chunks", "window.above", "window.across", where=_several, raises="RuntimeError"),
    _static(
        NO_ROOM,
        *("window.ones", "window.below", "window.at"),
        where=_several,
        says=_with_layer_types,
        raises="RuntimeError",
    ),
    _static(
        AS_WIDE,
        *("window.ones", "window.below", "window.at"),
        where=_several,
        says=_without_layer_types,
        unexplained="the reference's cache has no places of a fixed number",
    ),
    _static(
        AS_WIDE,
        *("steps", "chunks", "window.above", "window.across"),
        where=_one,
        unexplained="the reference's cache has no places of a fixed number",
    ),
)

FAMILY = Family(
    name="qwen2_moe",
    hf_class="Qwen2MoeForCausalLM",
    variants=tiny.VARIANTS,
    alone=(PUBLISHED, scalings.ALONE, windows.ALONE),
    units=decoder_units(
        inside=(LAYER_MASK, *LLAMA_LAYER[:-1], *mixture(is_sparse, shared="shared_expert", axes="n d"))
    ),
    backends=(
        Backend("eager", "eager"),
        Backend("sdpa", "eager", ("f64",)),
        Backend("eager", "batched_mm", ("f64",), variants=("base", "steps")),
        Backend("sdpa", "grouped_mm", ("f32", "bf16"), variants=("base", "steps")),  # the default; has no float64 kernel
    ),
    beside=beside.MIXTURE,
    siblings=siblings.decoders("Qwen2Moe"),
    known=(
        beside.no_tuple_by_config("0"),
        *scalings.KNOWN,
        scalings.WITHOUT_A_FACTOR,
        Known(
            name="a head_dim that is not d_model / n_heads is refused",
            sites=(LOADING,),
            until="5.0.0",
            where=lambda config: config.d_head * config.n_heads != config.d_model,
            link=scalings.MEASURED,
            raises="ValueError",
        ),
        *shared.WAYS_KNOWN,
        *mixtures.KNOWN,
        mixtures.FLOAT32_WEIGHTS,
        Known(
            name="max_window_layers counts the layers with a window, every second of them, instead of those without",
            smallest="`use_sliding_window=True, max_window_layers=1`, 3 layers",
            sites=("mask", "attn.probs", "attn"),
            since="5.0.0",
            where=windows.within_reach,
            says=_without_layer_types,
            link="no issue known",
            explained="the other layers have the window",
        ),
        counted("config.window_layers", where=lambda config: bool(config.window_layers)),
        counted("config.window", where=lambda config: len(config.window_layers) == config.n_layers),  # and so it has none
        Known(
            name="several texts in one row see each other",
            sites=("packed.bare",),
            until="5.0.0",
            link="measured with 4.57.6: its mask does not look at positions",
            explained=AS_ONE_READS,
            local=True,
        ),
        Known(
            name="neither max_window_layers nor layer_types is read, and every layer has the window",
            sites=("mask", "attn.probs", "attn"),
            until="5.0.0",
            where=windows.in_some_layers,
            link="no issue known",
            explained="every layer has the window",
        ),
        *OVER_A_CACHE,
        *(replace(known, since="5.0.0", says=_with_layer_types) for known in windows.WINDOW_OF_ONE),
    ),
    deviations=(
        *shared.RMS_NORM,
        shared.THETA,
        *scalings.DEVIATIONS,
        scalings.not_read(theta=10000.0),
        *windows.attention(grouped=AGREED, qkv_bias=("base", "steps", "window")),
        *shared.MASK,
        *windows.windows(("window", "every-4")),
        windows.OF_ONE,
        OTHERS,
        EVERY,
        *windows.FROM_THE_FIRST,
        *shared.gated_ffn(("steps", "window")),
        *mixtures.softmax_router(several=("base", "window", "bare"), some=("base", "window", "bare"), bare=("steps",)),
        *mixtures.experts(many=("base",), silu=("base", "window", "steps")),
        *mixtures.GATED_SHARED_EXPERT,
        *shared.pre_norm_layer(Qwen2MoeLayer),
        *shared.trunk(many_layers=()),
    ),
)
