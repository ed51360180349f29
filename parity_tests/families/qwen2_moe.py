"""Qwen1.5-MoE and Qwen2-57B-A14B."""

from typing import Any

from fixtures import qwen2_moe as tiny
from parity_tests.families import beside, siblings
from parity_tests.families import deviations as shared
from parity_tests.families import moe_deviations as mixtures
from parity_tests.families import window_deviations as windows
from parity_tests.families.moe_units import mixture
from parity_tests.families.units import LAYER_MASK, LLAMA_LAYER, decoder_units
from parity_tests.harness.record import Backend, Family, Known
from reference_impl.models.qwen2_moe import Qwen2MoeLayer

AGREED = ("base", "steps", "bare", "window")  # all but those in which transformers goes its own way
EVERY, OTHERS, _ = windows.window_layers(("window", "top-layers"))


def is_sparse(config: Any, layer: int) -> bool:
    """Whether a layer has experts."""
    return config.is_sparse(layer)


FAMILY = Family(
    name="qwen2_moe",
    hf_class="Qwen2MoeForCausalLM",
    variants=tiny.VARIANTS,
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
        *shared.WAYS_KNOWN,
        *mixtures.KNOWN,
        mixtures.FLOAT32_WEIGHTS,
        Known(
            name="max_window_layers counts the layers with a window, every second of them, instead of those without",
            sites=("mask", "attn.probs", "attn", "dynamic.*.held"),
            since="5.0.0",
            variants=("top-layers",),
            link="no issue known",
            explained="the other layers have the window",
        ),
        Known(
            name="several texts in one row see each other",
            sites=("packed.bare",),
            until="5.0.0",
            downstream=False,
            link="measured with 4.57.6: its mask does not look at positions",
        ),
        Known(
            name="neither max_window_layers nor layer_types is read, and every layer has the window",
            sites=("mask", "attn.probs", "attn", "dynamic.*.held"),
            until="5.0.0",
            variants=("top-layers", "window"),
            link="no issue known",
            explained="every layer has the window",
        ),
    ),
    deviations=(
        *shared.RMS_NORM,
        shared.THETA,
        *windows.attention(grouped=AGREED, qkv_bias=("base", "steps", "window")),
        *shared.MASK,
        *windows.windows(("window",)),
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
