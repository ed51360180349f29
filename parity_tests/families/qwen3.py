"""Qwen3, dense."""

from parity_tests.families import beside, siblings
from parity_tests.families import deviations as shared
from parity_tests.families import scaling_deviations as scalings
from parity_tests.families import window_deviations as windows
from parity_tests.families.units import LAYER_MASK, LLAMA_ATTENTION, LLAMA_LAYER, QK_NORM, decoder_units
from parity_tests.fixtures import qwen3 as tiny
from parity_tests.harness.record import PUBLISHED, Backend, Family
from reference_impl.models.qwen3 import Qwen3Layer

LAYER = tuple(part for unit in LLAMA_LAYER for part in ((*QK_NORM, unit) if unit is LLAMA_ATTENTION else (unit,)))

FAMILY = Family(
    name="qwen3",
    hf_class="Qwen3ForCausalLM",
    variants=tiny.VARIANTS,
    alone=(PUBLISHED, scalings.ALONE, windows.ALONE),
    units=decoder_units(inside=(LAYER_MASK, *LAYER)),
    backends=(Backend("eager"), Backend("sdpa", precisions=("f64", "f32"))),
    beside=beside.DECODER,
    siblings=siblings.decoders("Qwen3"),
    known=(
        beside.no_tuple_by_config("0"),
        *scalings.KNOWN,
        scalings.WITHOUT_A_FACTOR,
        *windows.WINDOW_OF_ONE,
        *windows.WAYS_KNOWN,
    ),
    deviations=(
        *shared.RMS_NORM,
        shared.THETA,
        *scalings.DEVIATIONS,
        scalings.not_read(theta=10000.0),
        *windows.attention(narrow=("*",), grouped=("*",), qkv_bias=("biased",), out_bias=("biased",)),
        *windows.QK_NORM,
        *shared.MASK,
        *windows.windows(("window", "every-4")),
        windows.OF_ONE,
        *windows.window_layers(("window",)),
        windows.unused_window(5, ("unused",)),
        *shared.gated_ffn(("window",)),
        *shared.pre_norm_layer(Qwen3Layer),
        *shared.trunk(many_layers=()),
    ),
)
