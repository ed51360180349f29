"""DeepSeek-V2, V2-Lite and Coder-V2."""

from typing import Any

from parity_tests.families import beside, siblings
from parity_tests.families import deviations as shared
from parity_tests.families import latent_deviations as latent
from parity_tests.families import moe_deviations as mixtures
from parity_tests.families import scaling_deviations as scalings
from parity_tests.families.moe_units import LATENT_ATTENTION, mixture
from parity_tests.families.units import block, decoder_units
from parity_tests.fixtures import deepseek_v2 as tiny
from parity_tests.harness.record import FORWARD, FOUND_HERE, PUBLISHED, Backend, Family, Known
from reference_impl.models.deepseek_v2 import DeepseekV2Layer

MSCALE = ("yarn", "rope-yarn-mscale*")
LIMITED = ("limited", "yarn", "all-of-one-group")  # by groups, and without renormalisation
Q_LATENT = (*LIMITED, "biased", "renormalised")


def is_sparse(config: Any, layer: int) -> bool:
    """Whether a layer has experts."""
    return layer >= config.n_dense_layers


FAMILY = Family(
    name="deepseek_v2",
    hf_class="DeepseekV2ForCausalLM",
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
        Backend("sdpa", "eager", ("f64",)),
        Backend("eager", "batched_mm", ("f64",), variants=("limited", "lite")),
        Backend("sdpa", "grouped_mm", ("f32", "bf16"), variants=("limited", "lite")),  # the default; has no float64 kernel
    ),
    inert={"pretraining_tp": "nothing reads it", "aux_loss_alpha": "no loss uses it", "seq_aux": "no loss uses it"},
    beside=beside.MIXTURE,
    siblings=siblings.decoders("DeepseekV2", tokens_too=False, spans_too=False),
    known=(
        beside.no_tuple_by_config("0"),
        *scalings.KNOWN,
        scalings.WITHOUT_A_FACTOR,
        *shared.WAYS_KNOWN,
        *latent.KNOWN,
        Known(
            name="YaRN's mscale does not reach the scale of the scores",
            sites=("attn.probs", "attn"),
            until="5.15.0",
            where=lambda config: config.rope.scaling.score_factor() != 1,
            link="no issue known; modeling_deepseek_v2.py has it from 5.15 on",
            explained="softmax scale without mscale",
        ),
        Known(
            name="groups limit the choice in no forward",
            sites=(FORWARD,),
            since="5.0.0",
            until="5.13.0",
            where=lambda config: config.limited and config.n_dense_layers < config.n_layers,
            link="https://github.com/huggingface/transformers/pull/46818",
            raises="AttributeError",
        ),
        Known(
            name="norm_topk_prob is not read",
            smallest="`norm_topk_prob=True`",
            sites=("ffn.router.weights", "ffn"),
            where=lambda config: config.normalised,
            link="no issue known",
            explained="renormalisation left out",
        ),
        Known(
            name="an odd qk_nope_head_dim or kv_lora_rank raises where nothing is cast: view_as_complex wants even strides",
            smallest="`qk_nope_head_dim=11`, one layer, float32",
            sites=(FORWARD,),
            where=lambda config: config.d_nope % 2 == 1 or config.kv_lora_rank % 2 == 1,
            precisions=("f64", "f32"),
            link=FOUND_HERE,
            raises="RuntimeError",
        ),
    ),
    deviations=(
        *shared.RMS_NORM,
        shared.THETA,
        *scalings.DEVIATIONS,
        scalings.not_read(theta=10000.0),
        *latent.mla(yarn=MSCALE, q_latent=Q_LATENT, no_q_latent=("lite",), biased=("biased",)),
        *shared.MASK,
        *shared.gated_ffn(("limited", "lite", "yarn")),
        shared.FFN_BIAS,
        *mixtures.group_limited_router(limited=("limited", "yarn"), scaled=LIMITED),
        *mixtures.normalisation(renormalised=("renormalised",), bare=()),
        *mixtures.experts(many=(*LIMITED, "renormalised"), silu=("limited", "lite", "yarn", "all-of-one-group")),
        *mixtures.SHARED_EXPERTS,
        *shared.pre_norm_layer(DeepseekV2Layer),
        *shared.trunk(many_layers=()),
    ),
)
