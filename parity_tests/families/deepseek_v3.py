"""DeepSeek-V3, R1 and V3.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fixtures import deepseek_v3 as tiny
from parity_tests.families import deviations as shared
from parity_tests.families import latent_deviations as mistakes
from parity_tests.families.units import NO_PROBABILITIES, attention_input, block, decoder_units, hidden
from parity_tests.harness import hf
from parity_tests.harness.compare import dense
from parity_tests.harness.record import Arguments, Backend, Call, Family, Known, Site, Unit
from reference_impl.models.deepseek_v3 import DeepseekV3Layer

ROUTER_SILENT = "the router does not say this here"
NOT_A_MODULE = "transformers runs its experts inside the block here"


def has_q_latent(config: Any, layer: int) -> bool:
    return config.q_lora_rank is not None


def is_sparse(config: Any, layer: int) -> bool:
    return layer >= config.n_dense_layers


def tokens(call: Call, seen: Mapping[str, Tensor]) -> Arguments:
    """The router's input, a token a row."""
    return Arguments(hidden(call).flatten(0, -2))


def routed(call: Call, seen: Mapping[str, Tensor]) -> Arguments:
    """The experts' input: hidden states, weights and choice."""
    return Arguments(hidden(call), call.argument(2, "top_k_weights"), call.argument(1, "top_k_index"))


def choice(call: Call) -> Tensor | None:
    """The chosen experts as (n, x)."""
    chosen = hf.routing(call.output).choice
    return None if chosen is None else dense(chosen, n_experts(call))


def weights(call: Call) -> Tensor | None:
    """The chosen experts' weights as (n, x)."""
    routing = hf.routing(call.output)
    return None if routing.choice is None else dense(routing.choice, n_experts(call), routing.weight)


def n_experts(call: Call) -> int:
    router: Any = call.module
    return len(router.weight)


ATTENTION = (
    block("layers.{layer}.attn.q_norm", "model.layers.{layer}.self_attn.q_a_layernorm", where=has_q_latent),
    block("layers.{layer}.attn.kv_norm", "model.layers.{layer}.self_attn.kv_a_layernorm"),
    Unit(
        name="layers.{layer}.attn",
        hf="model.layers.{layer}.self_attn",
        level="block",
        feed=attention_input,
        sites=(
            Site("latent", "b 1 t r", lambda c: c.cached and c.cached[0]),
            Site("rope_key", "b 1 t e", lambda c: c.cached and c.cached[1]),
            Site("probs", "b h s t", lambda c: c.output[1], absent=NO_PROBABILITIES),
            Site("", "b s d", lambda c: c.tensor),
        ),
    ),
)

MIXTURE = (
    Unit(
        name="layers.{layer}.ffn.router",
        hf="model.layers.{layer}.mlp.gate",
        level="block",
        feed=tokens,
        where=is_sparse,
        routes=lambda c: hf.routing(c.output).choice,
        sites=(
            Site("logits", "n x", lambda c: hf.routing(c.output).logits, absent=ROUTER_SILENT),
            Site("choice", "n x", choice, absent=ROUTER_SILENT, choice=True, mine=lambda r, out: dense(out[1], len(r.weight))),
            Site("weights", "n x", weights, absent=ROUTER_SILENT, mine=lambda r, out: dense(out[1], len(r.weight), out[0])),
        ),
    ),
    Unit(
        name="layers.{layer}.ffn.experts",
        hf="model.layers.{layer}.mlp.experts",
        level="block",
        feed=routed,
        where=is_sparse,
        sites=(Site("", "n d", lambda c: c.tensor, absent=NOT_A_MODULE),),
    ),
    block("layers.{layer}.ffn.shared", "model.layers.{layer}.mlp.shared_experts", where=is_sparse),
    block("layers.{layer}.ffn", "model.layers.{layer}.mlp"),
)


FAMILY = Family(
    name="deepseek_v3",
    hf_class="DeepseekV3ForCausalLM",
    variants=tiny.VARIANTS,
    units=decoder_units(
        inside=(
            block("layers.{layer}.attn_norm", "model.layers.{layer}.input_layernorm"),
            *ATTENTION,
            block("layers.{layer}.ffn_norm", "model.layers.{layer}.post_attention_layernorm"),
            *MIXTURE,
        )
    ),
    backends=(
        Backend("eager", "eager"),
        Backend("sdpa", "eager", ("f64",), variants=("yarn", "no-q-lora", "half-rope", "biased")),
        Backend("eager", "batched_mm", ("f64", "f32"), variants=("no-renorm", "shared-2", "negative-bias")),
        Backend("sdpa", "grouped_mm", ("f32", "bf16")),  # what runs by default; has no float64 kernel
    ),
    known=(
        *shared.YARN_KNOWN,
        Known(
            name="masked groups are filled with 0, which a negative score loses to",
            sites=("ffn.router.choice", "ffn"),
            until="5.6.0",
            variants=("negative-bias",),
            link="https://github.com/huggingface/transformers/pull/45441",
            explained="groups masked with 0 instead of -inf",
        ),
        Known(
            name="the cache holds expanded keys and values",
            sites=("attn.latent", "attn.rope_key", "dynamic.*.held"),
            until="5.15.0",
            downstream=False,
            link="measured: shapes (b, h, t, d) up to 5.14",
        ),
        Known(
            name="a static cache cannot hold values narrower than keys",
            sites=("static.*",),
            until="5.0.0",
            downstream=False,
            link="measured: RuntimeError in index_copy_",
        ),
    ),
    deviations=(
        *shared.RMS_NORM,
        shared.THETA,
        shared.scaled(("yarn",)),
        *shared.yarn(("yarn",)),
        *mistakes.MLA_BLOCK,
        *shared.MASK,
        *shared.gated_ffn(("base", "yarn", "no-*", "half-rope", "biased", "negative-bias")),
        *mistakes.ROUTER,
        *mistakes.EXPERTS,
        *shared.pre_norm_layer(DeepseekV3Layer),
        *shared.trunk(many_layers=("base",)),
    ),
)
