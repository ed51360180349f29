"""Units of mixtures of experts and of latent attention, which families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from parity_tests.families.units import NO_PROBABILITIES, attention_input, block, hidden, output
from parity_tests.harness import hf
from parity_tests.harness.compare import dense
from parity_tests.harness.record import Arguments, Call, Site, Unit

ROUTER_SILENT = "the router does not say this here"
NOT_A_MODULE = "transformers runs its experts inside the block here"

Where = Callable[[Any, int], bool]


def tokens(call: Call, seen: Mapping[str, Tensor]) -> Arguments:
    """The router's input, a token a row."""
    return Arguments(hidden(call).flatten(0, -2))


def routed(call: Call, seen: Mapping[str, Tensor]) -> Arguments:
    """The experts' input: hidden states, weights and choice."""
    return Arguments(hidden(call), call.argument(2, "top_k_weights"), call.argument(1, "top_k_index"))


def n_experts(call: Call) -> int:
    router: Any = call.module
    return len(router.weight)


def choice(call: Call) -> Tensor | None:
    """The chosen experts as (n, x)."""
    chosen = hf.routing(call.output).choice
    return None if chosen is None else dense(chosen, n_experts(call))


def weights(call: Call) -> Tensor | None:
    """The chosen experts' weights as (n, x)."""
    routing = hf.routing(call.output)
    return None if routing.choice is None else dense(routing.choice, n_experts(call), routing.weight)


def mixture(where: Where, *, shared: str = "", axes: str = "b s d") -> tuple[Unit, ...]:
    """Router, experts and the whole, in the layers that have them, and the dense network of the others.

    shared: what the shared experts' network is called inside the block, if there is one;
    axes: of what it gives.
    """
    router = Unit(
        name="layers.{layer}.ffn.router",
        hf="model.layers.{layer}.mlp.gate",
        level="block",
        feed=tokens,
        where=where,
        routes=lambda c: hf.routing(c.output).choice,
        sites=(
            Site("logits", "n x", lambda c: hf.routing(c.output).logits, absent=ROUTER_SILENT),
            Site("choice", "n x", choice, absent=ROUTER_SILENT, choice=True, mine=lambda r, out: dense(out[1], len(r.weight))),
            Site("weights", "n x", weights, absent=ROUTER_SILENT, mine=lambda r, out: dense(out[1], len(r.weight), out[0])),
        ),
    )
    experts = Unit(
        name="layers.{layer}.ffn.experts",
        hf="model.layers.{layer}.mlp.experts",
        level="block",
        feed=routed,
        where=where,
        sites=(Site("", "n d", lambda c: c.tensor, absent=NOT_A_MODULE),),
    )
    always = block("layers.{layer}.ffn.shared", f"model.layers.{{layer}}.mlp.{shared}", axes=axes, where=where)
    return router, experts, *((always,) if shared else ()), block("layers.{layer}.ffn", "model.layers.{layer}.mlp")


def has_q_latent(config: Any, layer: int) -> bool:
    """Where the queries have a latent of their own."""
    return config.q_lora_rank is not None


LATENT_ATTENTION = (
    block("layers.{layer}.attn.q_norm", "model.layers.{layer}.self_attn.q_a_layernorm", where=has_q_latent),
    block("layers.{layer}.attn.kv_norm", "model.layers.{layer}.self_attn.kv_a_layernorm"),
    Unit(
        name="layers.{layer}.attn",
        hf="model.layers.{layer}.self_attn",
        level="block",
        feed=attention_input,
        sites=(
            Site("latent", "b 1 t r", lambda c: c.cached[0] if c.cached else None),
            Site("rope_key", "b 1 t e", lambda c: c.cached[1] if c.cached else None),
            Site("probs", "b h s t", lambda c: c.output[1], absent=NO_PROBABILITIES),
            output("b s d"),
        ),
    ),
)
