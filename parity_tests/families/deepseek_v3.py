"""DeepSeek-V3, R1 and V3.1."""

from __future__ import annotations

from typing import Any

from parity_tests.families import beside, siblings
from parity_tests.families import deviations as shared
from parity_tests.families import latent_deviations as latent
from parity_tests.families import moe_deviations as mixtures
from parity_tests.families import scaling_deviations as scalings
from parity_tests.families.moe_units import LATENT_ATTENTION, mixture
from parity_tests.families.units import block, decoder_units
from parity_tests.fixtures import deepseek_v3 as tiny
from parity_tests.harness.record import LOADING, PUBLISHED, Backend, Family, Known
from reference_impl.models.deepseek_v3 import DeepseekV3Layer


def is_sparse(config: Any, layer: int) -> bool:
    return layer >= config.n_dense_layers


Q_LATENT = ("base", "yarn", "half-rope", "no-renorm", "shared-2", "biased", "negative-bias")
RENORMALISED = ("base", "yarn", "no-q-lora", "half-rope", "shared-2", "biased", "negative-bias")

FAMILY = Family(
    name="deepseek_v3",
    hf_class="DeepseekV3ForCausalLM",
    inert={
        "pretraining_tp": "nothing reads it",
        "num_nextn_predict_layers": "modules for multi-token prediction, apart from the model proper",
    },
    variants=tiny.VARIANTS,
    alone=(PUBLISHED, scalings.ALONE,),
    units=decoder_units(
        inside=(
            block("layers.{layer}.attn_norm", "model.layers.{layer}.input_layernorm"),
            *LATENT_ATTENTION,
            block("layers.{layer}.ffn_norm", "model.layers.{layer}.post_attention_layernorm"),
            *mixture(is_sparse, shared="shared_experts"),
        )
    ),
    backends=(
        Backend("eager", "eager"),
        Backend("sdpa", "eager", ("f64",), variants=("yarn", "no-q-lora", "half-rope", "biased")),
        Backend("eager", "batched_mm", ("f64", "f32"), variants=("no-renorm", "shared-2", "negative-bias")),
        Backend("sdpa", "grouped_mm", ("f32", "bf16")),  # what runs by default; has no float64 kernel
    ),
    beside=beside.MIXTURE,
    siblings=siblings.decoders("DeepseekV3", spans_too=False),
    known=(
        beside.no_tuple_by_config("0"),
        *scalings.KNOWN,
        Known(
            name="a rope_scaling without a factor, of type default or longrope, raises",
            sites=(LOADING,),
            until="5.0.0",
            says=lambda raw: raw.get("rope_scaling") is not None and "factor" not in raw["rope_scaling"],
            link=scalings.MEASURED,
            raises="KeyError",
        ),
        *shared.WAYS_KNOWN,
        Known(
            name="masked groups are filled with 0, which a negative score loses to",
            sites=("ffn.router.choice", "ffn", "ffn.experts"),
            until="5.6.0",
            link="https://github.com/huggingface/transformers/pull/45441",
            explained="groups masked with 0 instead of -inf",
        ),
        *latent.KNOWN,
        Known(
            name="an expert that no token chose has no gradient, and no step of an optimizer changes it",
            sites=("trainable", "step"),
            until="5.0.0",
            where=lambda config: config.n_dense_layers < config.n_layers,
            link="measured with 4.57.6, where each is a module of its own",
            unexplained="the experts of the reference lie in one tensor, whose gradient has zeros there",
        ),
    ),
    deviations=(
        *shared.RMS_NORM,
        shared.THETA,
        *scalings.DEVIATIONS,
        scalings.not_read(theta=10000.0),
        *latent.mla(yarn=("yarn", "rope-yarn-mscale*"), q_latent=Q_LATENT, no_q_latent=("no-q-lora",), biased=("biased",)),
        *shared.MASK,
        *shared.gated_ffn(("base", "yarn", "no-*", "half-rope", "biased", "negative-bias")),
        *mixtures.grouped_router(renormalised=RENORMALISED, bare=("no-renorm",), negative=("negative-bias",)),
        *mixtures.experts(),
        *mixtures.SHARED_EXPERTS,
        *shared.pre_norm_layer(DeepseekV3Layer),
        *shared.trunk(many_layers=("base",)),
    ),
)
