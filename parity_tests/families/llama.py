"""Llama 1 to 3.x, and SmolLM2."""

from dataclasses import replace

from parity_tests.families import beside, siblings
from parity_tests.families import deviations as shared
from parity_tests.families import scaling_deviations as scalings
from parity_tests.families.units import LLAMA_LAYER, decoder_units
from parity_tests.fixtures import llama as tiny
from parity_tests.harness.record import PUBLISHED, Family, Known
from reference_impl.models.llama import LlamaLayer
from reference_impl.rope_scaling import DynamicNTK

FAMILY = Family(
    name="llama",
    hf_class="LlamaForCausalLM",
    inert={"pretraining_tp": "nothing reads it; releases that did sliced the products, which rounds otherwise"},
    variants=tiny.VARIANTS,
    alone=(PUBLISHED, replace(scalings.ALONE, variants=("rope-*-*",)),),  # one of each scaling is compared in full
    units=decoder_units(inside=LLAMA_LAYER),
    beside=beside.DECODER,
    siblings=siblings.decoders("Llama"),
    known=(
        beside.no_tuple_by_config("0"),
        *scalings.KNOWN,
        scalings.WITHOUT_A_FACTOR,
        scalings.DIVISORS_KNOWN,
        *shared.WAYS_KNOWN,
        Known(
            name="dynamic NTK keeps the table of the longest call",
            sites=("repeated",),
            since="5.0.0",
            until="5.13.0",
            where=lambda config: isinstance(config.rope.scaling, DynamicNTK),
            link="https://github.com/huggingface/transformers/pull/46624",
            unexplained="what a call gives depends on an earlier one, which is not asked of the reference",
        ),
    ),
    deviations=(
        *shared.RMS_NORM,
        shared.THETA,
        *scalings.DEVIATIONS,
        scalings.DIVISORS_DROPPED,
        scalings.not_read(theta=10000.0),
        *shared.ATTENTION,
        *shared.MASK,
        *shared.gated_ffn(),
        shared.FFN_BIAS,
        *shared.pre_norm_layer(LlamaLayer),
        *shared.trunk(many_layers=("mqa",)),
    ),
)
