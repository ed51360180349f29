"""Units that families share: how a block of the reference is found, fed and read on transformers' side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from parity_tests.harness.record import Arguments, Call, Site, Unit, everywhere, in_layers
from reference_impl.cache import LayerCache
from reference_impl.mask import causal_mask

NO_PROBABILITIES = "this attention returns no probabilities"
NO_MASK = "this attention is told is_causal and gets no mask"


def hidden(call: Call) -> Tensor:
    """The first input, whatever it is called."""
    return call.argument(0, "hidden_states", "x", "input")


def only_hidden(call: Call, seen: Mapping[str, Tensor]) -> Arguments:
    """Arguments of a block that takes one tensor."""
    return Arguments(hidden(call))


def visible(mask: Tensor | None) -> Tensor | None:
    """transformers' mask, additive or boolean, as "may look at"."""
    if mask is None or mask.dtype == torch.bool:
        return mask
    return mask == 0


def tables(call: Call, seen: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """cos and sin, one entry a pair, as the twin got them; the reference's own where a release makes them inside."""
    given = call.argument(1, "position_embeddings")
    return (seen["rope.cos"], seen["rope.sin"]) if given is None else (cosines(given), sines(given))


def cosines(table: Any) -> Tensor:
    """cos, one entry a pair, of (cos, sin) that list every pair twice, or of complex numbers."""
    return table.real if isinstance(table, Tensor) else table[0][..., : table[0].shape[-1] // 2]


def sines(table: Any) -> Tensor:
    """sin, in the same way."""
    return table.imag if isinstance(table, Tensor) else table[1][..., : table[1].shape[-1] // 2]


def attention_input(call: Call, seen: Mapping[str, Tensor]) -> Arguments:
    """Arguments of an attention block or of a whole decoder layer: hidden states, tables, mask, an empty cache."""
    x, mask = hidden(call), visible(call.argument(2, "attention_mask"))
    slots = torch.arange(x.shape[1], device=x.device)
    return Arguments(x, tables(call, seen), causal_mask(slots, slots) if mask is None else mask, LayerCache())


def block(name: str, hf: str, axes: str = "b s d", where: Callable[[Any, int], bool] = everywhere) -> Unit:
    """A block of one input and one output: a norm, a projection, a feed-forward network."""
    return Unit(name=name, hf=hf, level="block", feed=only_hidden, where=where, sites=(output(axes),))


def output(axes: str) -> Site:
    """What a module returns."""
    return Site("", axes, lambda c: c.tensor)


MASK = Unit(
    name="mask",
    hf="model.layers.0",
    level="block",
    sites=(Site("", "b 1 s t", lambda c: visible(c.argument(1, "attention_mask")), absent=NO_MASK),),
)
LAYER_MASK = replace(MASK, name="layers.{layer}.mask", hf="model.layers.{layer}")
"""Of each layer, where not all see as far."""


def decoder_units(*, inside: tuple[Unit, ...]) -> Callable[[Any], list[Unit]]:
    """The trunk that Llama shares with its relatives; `inside`: the units of a layer, its mask where it has its own."""
    before = (
        block("embed", "model.embed_tokens"),
        Unit(
            name="rope",
            hf="model.rotary_emb",
            level="block",
            feed=lambda call, seen: Arguments(call.argument(1, "position_ids"), call.argument(0, "x").dtype),
            sites=(
                Site("cos", "b s p", lambda c: cosines(c.output)),
                Site("sin", "b s p", lambda c: sines(c.output)),
            ),
        ),
        *(() if any(unit.name == LAYER_MASK.name for unit in inside) else (MASK,)),
    )
    layer = (
        *inside,
        Unit(
            name="layers.{layer}",
            hf="model.layers.{layer}",
            level="layer",
            feed=attention_input,
            sites=(output("b s d"),),
        ),
    )
    after = (
        block("norm", "model.norm"),
        block("lm_head", "lm_head", axes="b s v"),
        Unit(name="", hf="", label="logits", level="model", sites=(Site("", "b s v", lambda c: c.output["logits"]),)),
    )
    return lambda config: [*before, *in_layers(layer, config, config.n_layers), *after]


LLAMA_ATTENTION = Unit(
    name="layers.{layer}.attn",
    hf="model.layers.{layer}.self_attn",
    level="block",
    feed=attention_input,
    sites=(
        Site("keys", "b g t e", lambda c: c.cached[0] if c.cached else None),
        Site("values", "b g t e", lambda c: c.cached[1] if c.cached else None),
        Site("probs", "b h s t", lambda c: c.output[1], absent=NO_PROBABILITIES),
        output("b s d"),
    ),
)

LLAMA_LAYER = (
    block("layers.{layer}.attn_norm", "model.layers.{layer}.input_layernorm"),
    LLAMA_ATTENTION,
    block("layers.{layer}.ffn_norm", "model.layers.{layer}.post_attention_layernorm"),
    block("layers.{layer}.ffn", "model.layers.{layer}.mlp"),
)


def head_norm(name: str, axes: str) -> Unit:
    """A norm over each head of queries or keys, which transformers gives as (b, s, h, e)."""
    return Unit(
        name=f"layers.{{layer}}.attn.{name}",
        hf=f"model.layers.{{layer}}.self_attn.{name}",
        level="block",
        feed=lambda call, seen: Arguments(hidden(call).transpose(1, 2)),
        sites=(Site("", axes, lambda c: c.tensor.transpose(1, 2)),),
    )


QK_NORM = (head_norm("q_norm", "b h s e"), head_norm("k_norm", "b g s e"))
