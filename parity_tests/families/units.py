"""Units that families share: how a block of the reference is found, fed and read on transformers' side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from parity_tests.harness.record import Arguments, Call, Site, Unit, everywhere, in_layers
from reference_impl.cache import LayerCache

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
    if not isinstance(given, tuple):
        return seen["rope.cos"], seen["rope.sin"]
    cos, sin = given
    return cos[..., : cos.shape[-1] // 2], sin[..., : sin.shape[-1] // 2]


def attention_input(call: Call, seen: Mapping[str, Tensor]) -> Arguments:
    """Arguments of an attention block or of a whole decoder layer: hidden states, tables, mask, an empty cache."""
    mask = visible(call.argument(2, "attention_mask"))
    return Arguments(hidden(call), tables(call, seen), seen["mask"] if mask is None else mask, LayerCache())


def block(
    name: str, hf: str, axes: str = "b s d", where: Callable[[Any, int], bool] = everywhere, rows: tuple[str, ...] = ()
) -> Unit:
    """A block of one input and one output: a norm, a projection, a feed-forward network."""
    return Unit(name=name, hf=hf, level="block", feed=only_hidden, where=where, rows=rows, sites=(output(axes),))


def output(axes: str) -> Site:
    """What a module returns."""
    return Site("", axes, lambda c: c.tensor)


def decoder_units(*, inside: tuple[Unit, ...]) -> Callable[[Any], list[Unit]]:
    """The trunk that Llama shares with its relatives; `inside`: the units of a layer."""
    before = (
        block("embed", "model.embed_tokens"),
        Unit(
            name="rope",
            hf="model.rotary_emb",
            level="block",
            feed=lambda call, seen: Arguments(call.argument(1, "position_ids"), call.argument(0, "x").dtype),
            sites=(
                Site("cos", "b s p", lambda c: c.output[0][..., : c.output[0].shape[-1] // 2]),
                Site("sin", "b s p", lambda c: c.output[1][..., : c.output[1].shape[-1] // 2]),
            ),
        ),
        Unit(
            name="mask",
            hf="model.layers.0",
            level="block",
            sites=(Site("", "b 1 s t", lambda c: visible(c.argument(1, "attention_mask")), absent=NO_MASK),),
        ),
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
        Site("keys", "b g t e", lambda c: c.cached and c.cached[0]),
        Site("values", "b g t e", lambda c: c.cached and c.cached[1]),
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
