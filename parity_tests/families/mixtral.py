"""Mixtral 8x7B and 8x22B."""

from parity_tests.families import beside, siblings
from parity_tests.families import deviations as shared
from parity_tests.families import moe_deviations as mixtures
from parity_tests.families import scaling_deviations as scalings
from parity_tests.families import window_deviations as windows
from parity_tests.families.moe_units import mixture
from parity_tests.families.units import LAYER_MASK, LLAMA_LAYER, decoder_units
from parity_tests.fixtures import mixtral as tiny
from parity_tests.harness.record import PUBLISHED, Backend, Family, everywhere
from reference_impl.models.mixtral import MixtralLayer

SOME = ("base", "window", "tied")  # neither one expert nor all of them

FAMILY = Family(
    name="mixtral",
    hf_class="MixtralForCausalLM",
    variants=tiny.VARIANTS,
    alone=(PUBLISHED, scalings.ALONE, windows.ALONE),
    units=decoder_units(inside=(LAYER_MASK, *LLAMA_LAYER[:-1], *mixture(everywhere))),
    backends=(
        Backend("eager", "eager"),
        Backend("sdpa", "eager", ("f64",)),
        Backend("eager", "batched_mm", ("f64",), variants=("base", "top-all")),
        Backend("sdpa", "grouped_mm", ("f32", "bf16"), variants=("base", "top-all")),  # the default; has no float64 kernel
    ),
    beside=beside.MIXTURE,
    siblings=siblings.decoders("Mixtral"),
    known=(
        beside.no_tuple_by_config("0"),
        *scalings.KNOWN,
        scalings.WITHOUT_A_FACTOR,
        *windows.WINDOW_OF_ONE,
        *scalings.without_a_width(until=None),
        *mixtures.KNOWN,
        *shared.WAYS_KNOWN,
    ),
    deviations=(
        *shared.RMS_NORM,
        shared.THETA,
        *scalings.DEVIATIONS,
        scalings.not_read(theta=1e6),
        *windows.attention(narrow=SOME, grouped=("base", "window")),
        *shared.MASK,
        *windows.windows(("window", "every-4")),
        windows.OF_ONE,
        *mixtures.softmax_router(several=(*SOME, "top-all"), some=SOME),
        *mixtures.experts(many=("base",), weighed=(*SOME, "top-all"), silu=(*SOME, "top-all")),
        *shared.pre_norm_layer(MixtralLayer),
        *shared.trunk(many_layers=()),
    ),
)
