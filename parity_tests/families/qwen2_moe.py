"""Qwen1.5-MoE and Qwen2-57B-A14B."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fixtures import qwen2_moe as tiny
from parity_tests.families import beside, siblings
from parity_tests.families import deviations as shared
from parity_tests.families import moe_deviations as mixtures
from parity_tests.families import scaling_deviations as scalings
from parity_tests.families import window_deviations as windows
from parity_tests.families.moe_units import mixture
from parity_tests.families.units import LAYER_MASK, LLAMA_LAYER, decoder_units
from parity_tests.harness.record import AS_ONE_READS, LOADING, PUBLISHED, Backend, Family, Known
from reference_impl.models.qwen2_moe import Qwen2MoeLayer

AGREED = ("base", "steps", "bare", "window")  # all but those in which transformers goes its own way
EVERY, OTHERS, _ = windows.window_layers(("window", "top-layers"))


def is_sparse(config: Any, layer: int) -> bool:
    """Whether a layer has experts."""
    return config.is_sparse(layer)


STATIC = ("static.steps", "static.chunks")
HELD = ("dynamic.steps.held", "dynamic.chunks.held")
DYNAMIC = (
    *("dynamic.steps", "dynamic.chunks", *HELD, "greedy", "prefilled"),
    *("left-padded", "left-padded.alone", "left-padded.equals-alone", "eos"),
)


def of_several(config: Any) -> bool:
    """Of windows of more than one token that are shorter than what is read."""
    return windows.within_reach(config) and config.window > 1


def over_a_cache(*sites: str, where: Callable[[Any], bool]) -> Known:
    """A dynamic cache keeps everything when the window is one token, and then all but what it holds is right."""
    return Known(
        name="over a cache, the mask counts from the first token, and the cache from the first that it still holds",
        sites=sites,
        until="5.0.0",
        where=where,
        link=scalings.MEASURED,
        unexplained="the reference has one count of places, which masks and caches share",
    )


FAMILY = Family(
    name="qwen2_moe",
    hf_class="Qwen2MoeForCausalLM",
    variants=tiny.VARIANTS,
    alone=(PUBLISHED, scalings.ALONE, windows.ALONE),
    units=decoder_units(
        inside=(LAYER_MASK, *LLAMA_LAYER[:-1], *mixture(is_sparse, rows=("F3",), shared="shared_expert", axes="n d"))
    ),
    backends=(
        Backend("eager", "eager"),
        Backend("sdpa", "eager", ("f64",)),
        Backend("eager", "batched_mm", ("f64",), variants=("base", "steps")),
        Backend("sdpa", "grouped_mm", ("f32", "bf16"), variants=("base", "steps")),  # the default; has no float64 kernel
    ),
    rows=("M4", "G1"),
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
            sites=("mask", "attn.probs", "attn"),
            since="5.0.0",
            where=windows.within_reach,
            says=lambda raw: "layer_types" not in raw,
            link="no issue known",
            explained="the other layers have the window",
        ),
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
        over_a_cache(*DYNAMIC, where=of_several),
        Known(
            name="a static cache is as long as the window, and the mask as the text",
            sites=STATIC,
            until="5.0.0",
            where=of_several,
            link=scalings.MEASURED,
            raises="RuntimeError",
        ),
        *(replace(known, since="5.0.0", says=lambda raw: "layer_types" in raw) for known in windows.WINDOW_OF_ONE),
        over_a_cache(*STATIC, *HELD, where=lambda config: config.window == 1),
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
        *shared.gated_ffn(("steps", "window")),
        *mixtures.softmax_router(several=("base", "window", "bare"), some=("base", "window", "bare"), bare=("steps",)),
        *mixtures.experts(many=("base",), silu=("base", "window", "steps")),
        *mixtures.GATED_SHARED_EXPERT,
        *shared.pre_norm_layer(Qwen2MoeLayer),
        *shared.trunk(many_layers=()),
    ),
)
