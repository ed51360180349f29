"""Llama 1 to 3.x, and SmolLM2."""

from fixtures import llama as tiny
from parity_tests.families import beside, siblings
from parity_tests.families import deviations as shared
from parity_tests.families.units import LLAMA_LAYER, decoder_units
from parity_tests.harness.record import Family, Known
from reference_impl.models.llama import LlamaLayer

FAMILY = Family(
    name="llama",
    hf_class="LlamaForCausalLM",
    rows=("L5", "M4"),
    inert={"pretraining_tp": "nothing reads it; releases that did sliced the products, which rounds otherwise"},
    variants=tiny.VARIANTS,
    units=decoder_units(inside=LLAMA_LAYER),
    beside=beside.DECODER,
    siblings=siblings.decoders("Llama"),
    known=(
        beside.no_tuple_by_config("0"),
        *shared.YARN_KNOWN,
        *shared.WAYS_KNOWN,
        Known(
            name="dynamic NTK keeps the table of the longest call",
            sites=("repeated",),
            since="5.0.0",
            until="5.13.0",
            variants=("rope-dynamic",),
            downstream=False,
            link="https://github.com/huggingface/transformers/pull/46624",
        ),
    ),
    deviations=(
        *shared.RMS_NORM,
        shared.THETA,
        shared.scaled(("rope-*",)),
        *shared.yarn(("rope-yarn",)),
        shared.LLAMA3,
        *shared.LONGROPE,
        *shared.ATTENTION,
        *shared.MASK,
        *shared.gated_ffn(),
        shared.FFN_BIAS,
        *shared.pre_norm_layer(LlamaLayer),
        *shared.trunk(many_layers=("mqa",)),
    ),
)
