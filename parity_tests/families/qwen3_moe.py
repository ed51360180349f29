"""Qwen3-MoE: 30B-A3B, 235B-A22B and Qwen3-Coder."""

from typing import Any

from parity_tests.families import beside, siblings
from parity_tests.families import deviations as shared
from parity_tests.families import moe_deviations as mixtures
from parity_tests.families import scaling_deviations as scalings
from parity_tests.families import window_deviations as windows
from parity_tests.families.moe_units import mixture
from parity_tests.families.units import LAYER_MASK, LLAMA_ATTENTION, LLAMA_LAYER, QK_NORM, decoder_units
from parity_tests.fixtures import qwen3_moe as tiny
from parity_tests.harness.record import PUBLISHED, Backend, Family, Known
from reference_impl.models.qwen3_moe import Qwen3MoeLayer

BEFORE_FFN = tuple(part for unit in LLAMA_LAYER[:-1] for part in ((*QK_NORM, unit) if unit is LLAMA_ATTENTION else (unit,)))
AGREED = ("base", "steps", "biased", "window")  # all but those in which transformers goes its own way
EVERY, *_ = windows.window_layers(("top-layers",))  # what transformers does


def is_sparse(config: Any, layer: int) -> bool:
    """Whether a layer has experts."""
    return config.is_sparse(layer)


FAMILY = Family(
    name="qwen3_moe",
    hf_class="Qwen3MoeForCausalLM",
    variants=tiny.VARIANTS,
    alone=(PUBLISHED, scalings.ALONE, windows.ALONE),
    units=decoder_units(inside=(LAYER_MASK, *BEFORE_FFN, *mixture(is_sparse))),
    backends=(
        Backend("eager", "eager"),
        Backend("sdpa", "eager", ("f64",)),
        Backend("eager", "batched_mm", ("f64",), variants=("base", "steps")),
        Backend("sdpa", "grouped_mm", ("f32", "bf16"), variants=("base", "steps")),  # the default; has no float64 kernel
    ),
    beside=beside.MIXTURE,
    siblings=siblings.decoders("Qwen3Moe"),
    known=(
        beside.no_tuple_by_config("0"),
        *scalings.KNOWN,
        scalings.WITHOUT_A_FACTOR,
        *windows.WINDOW_OF_ONE,
        *shared.WAYS_KNOWN,
        *mixtures.KNOWN,
        mixtures.FLOAT32_WEIGHTS,
        Known(
            name="max_window_layers is not read, and every layer has the window",
            smallest="`use_sliding_window=True, max_window_layers=1`, 3 layers",
            sites=("mask", "attn.probs", "attn"),
            where=windows.in_some_layers,
            link="no issue known",
            explained="every layer has the window",
        ),
    ),
    deviations=(
        *shared.RMS_NORM,
        shared.THETA,
        *scalings.DEVIATIONS,
        scalings.not_read(theta=10000.0),
        *windows.attention(narrow=("*",), grouped=AGREED, qkv_bias=("biased",), out_bias=("biased",)),
        *windows.QK_NORM,
        *shared.MASK,
        *windows.windows(("window", "every-4")),
        windows.OF_ONE,
        EVERY,
        *shared.gated_ffn(("steps", "window")),
        *mixtures.softmax_router(several=("base", "window", "biased"), some=("base", "window", "biased"), bare=("steps",)),
        *mixtures.experts(many=("base",), silu=("base", "window", "steps")),
        *shared.pre_norm_layer(Qwen3MoeLayer),
        *shared.trunk(many_layers=()),
    ),
)
