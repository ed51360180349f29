"""Units that families share: how a block of the reference is found, fed and read on transformers' side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from parity_tests.harness.record import Call, Site, Unit
from reference_impl.cache import LayerCache

NO_PROBABILITIES = "this attention returns no probabilities"
NO_MASK = "this attention is told is_causal and gets no mask"


def hidden(call: Call) -> Tensor:
    """The first input, whatever it is called."""
    return call.argument(0, "hidden_states", "x", "input")


def only_hidden(call: Call, seen: Mapping[str, Tensor]) -> tuple[Any, ...]:
    """Arguments of a block that takes one tensor."""
    return (hidden(call),)


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


def attention_input(call: Call, seen: Mapping[str, Tensor]) -> tuple[Any, ...]:
    """Arguments of an attention block or of a whole decoder layer: hidden states, tables, mask, an empty cache."""
    mask = visible(call.argument(2, "attention_mask"))
    return hidden(call), tables(call, seen), seen["mask"] if mask is None else mask, LayerCache()


def norm(name: str, hf: str) -> Unit:
    """A normalisation layer."""
    return Unit(name=name, hf=hf, level="block", feed=only_hidden, sites=(Site("", "b s d", lambda c: c.tensor),))


def decoder_units(*, inside: tuple[Unit, ...]) -> tuple[Unit, ...]:
    """The trunk that Llama shares with its relatives; `inside`: the units of a layer."""
    return (
        Unit(
            name="embed",
            hf="model.embed_tokens",
            level="block",
            feed=only_hidden,
            sites=(Site("", "b s d", lambda c: c.tensor),),
        ),
        Unit(
            name="rope",
            hf="model.rotary_emb",
            level="block",
            feed=lambda call, seen: (call.argument(1, "position_ids"), call.argument(0, "x").dtype),
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
        *inside,
        Unit(
            name="layers.{layer}",
            hf="model.layers.{layer}",
            level="layer",
            feed=attention_input,
            sites=(Site("", "b s d", lambda c: c.tensor),),
        ),
        norm("norm", "model.norm"),
        Unit(
            name="lm_head",
            hf="lm_head",
            level="block",
            feed=only_hidden,
            sites=(Site("", "b s v", lambda c: c.tensor),),
        ),
        Unit(name="", hf="", label="logits", level="model", sites=(Site("", "b s v", lambda c: c.output["logits"]),)),
    )


LLAMA_ATTENTION = Unit(
    name="layers.{layer}.attn",
    hf="model.layers.{layer}.self_attn",
    level="block",
    feed=attention_input,
    sites=(
        Site("keys", "b g t e", lambda c: c.cached and c.cached[0]),
        Site("values", "b g t e", lambda c: c.cached and c.cached[1]),
        Site("probs", "b h s t", lambda c: c.output[1], absent=NO_PROBABILITIES),
        Site("", "b s d", lambda c: c.tensor),
    ),
)

LLAMA_LAYER = (
    norm("layers.{layer}.attn_norm", "model.layers.{layer}.input_layernorm"),
    LLAMA_ATTENTION,
    norm("layers.{layer}.ffn_norm", "model.layers.{layer}.post_attention_layernorm"),
    Unit(
        name="layers.{layer}.ffn",
        hf="model.layers.{layer}.mlp",
        level="block",
        feed=only_hidden,
        sites=(Site("", "b s d", lambda c: c.tensor),),
    ),
)
