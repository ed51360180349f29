"""Mistral 7B to Nemo."""

from parity_tests.families import beside, siblings
from parity_tests.families import deviations as shared
from parity_tests.families import scaling_deviations as scalings
from parity_tests.families import window_deviations as windows
from parity_tests.families.units import LAYER_MASK, LLAMA_LAYER, decoder_units
from parity_tests.fixtures import mistral as tiny
from parity_tests.harness.record import PUBLISHED, Backend, Family
from reference_impl.models.mistral import MistralLayer

FAMILY = Family(
    name="mistral",
    hf_class="MistralForCausalLM",
    variants=tiny.VARIANTS,
    alone=(PUBLISHED, scalings.ALONE, windows.ALONE),
    units=decoder_units(inside=(LAYER_MASK, *LLAMA_LAYER)),
    backends=(Backend("eager"), Backend("sdpa", precisions=("f64", "f32"))),
    beside=beside.DECODER,
    siblings=siblings.decoders("Mistral"),
    known=(
        beside.no_tuple_by_config("0"),
        *scalings.KNOWN,
        scalings.WITHOUT_A_FACTOR,
        *scalings.without_a_width(until="5.0.0"),
        *windows.WINDOW_OF_ONE,
        *windows.WAYS_KNOWN,
    ),
    deviations=(
        *shared.RMS_NORM,
        shared.THETA,
        *scalings.DEVIATIONS,
        scalings.not_read(theta=10000.0),
        *windows.attention(narrow=("window",), grouped=("window",)),
        *shared.MASK,
        *windows.windows(("window", "every-4")),
        windows.OF_ONE,
        *shared.gated_ffn(("window",)),
        *shared.pre_norm_layer(MistralLayer),
        *shared.trunk(many_layers=()),
    ),
)
