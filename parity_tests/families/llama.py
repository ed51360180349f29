"""Llama 1 to 3.x, and SmolLM2."""

from fixtures import llama as tiny
from parity_tests.families import deviations as known_mistakes
from parity_tests.families.units import LLAMA_LAYER, decoder_units
from parity_tests.harness.record import Family
from reference_impl.models.llama import LlamaLayer

FAMILY = Family(
    name="llama",
    hf_class="LlamaForCausalLM",
    variants=tiny.VARIANTS,
    fill=tiny.FILL,
    units=decoder_units(inside=LLAMA_LAYER),
    deviations=(
        *known_mistakes.RMS_NORM,
        *known_mistakes.ROPE,
        *known_mistakes.ATTENTION,
        *known_mistakes.MASK,
        *known_mistakes.GATED_FFN,
        *known_mistakes.pre_norm_layer(LlamaLayer),
        *known_mistakes.TRUNK,
    ),
)
