"""Qwen2, Qwen2.5 and Qwen2.5-Coder."""

from parity_tests.families import beside, siblings
from parity_tests.families import deviations as shared
from parity_tests.families import scaling_deviations as scalings
from parity_tests.families import window_deviations as windows
from parity_tests.families.units import LAYER_MASK, LLAMA_LAYER, decoder_units
from parity_tests.fixtures import qwen2 as tiny
from parity_tests.harness.record import PUBLISHED, Backend, Family
from reference_impl.models.qwen2 import Qwen2Layer

OTHERS = {"Qwen2RMSNorm": "a block of every model", "JevForDecision": "of another family, which reads this one's configs"}

FAMILY = Family(
    name="qwen2",
    hf_class="Qwen2ForCausalLM",
    variants=tiny.VARIANTS,
    alone=(PUBLISHED, scalings.ALONE, windows.ALONE),
    units=decoder_units(inside=(LAYER_MASK, *LLAMA_LAYER)),
    backends=(Backend("eager"), Backend("sdpa", precisions=("f64", "f32"))),
    beside=beside.DECODER,
    siblings=siblings.decoders("Qwen2") | OTHERS,
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
        *windows.attention(narrow=("window-long",), grouped=("window", "window-long"), qkv_bias=("*",)),
        *shared.MASK,
        *windows.windows(("window", "every-4")),
        windows.OF_ONE,
        *windows.window_layers(("window",)),
        windows.unused_window(5, ("unused",)),
        *shared.gated_ffn(("window",)),
        *shared.pre_norm_layer(Qwen2Layer),
        *shared.trunk(many_layers=()),
    ),
)
