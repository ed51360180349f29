"""Units of encoder-decoders: how the blocks of both sides are found, fed and read on transformers' side.

A side is "encoder" or "decoder". An encoder's tokens are those of the memory, and have its axis, m.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from torch import Tensor

from parity_tests.families.deviations import each
from parity_tests.families.transformer_units import held, passed
from parity_tests.families.units import NO_PROBABILITIES, block, hidden, output, visible
from parity_tests.harness.batches import Reads
from parity_tests.harness.record import TRAINING, Arguments, Backend, Call, Deviation, Known, Site, Unit, in_layers
from reference_impl.cache import LayerCache
from reference_impl.encoder_decoder import Stack

Feed: TypeAlias = Callable[[Call, Mapping[str, Tensor]], Arguments]

BACKENDS = (Backend("eager"), Backend("sdpa", precisions=("f64", "f32")))
LAYERDROP = Known(
    name="a random number is drawn for every layer in training, although none is left out",
    sites=("dropout", "cache.training"),
    until="5.0.0",
    link="measured in 4.57.6; not so in 5.24.0",
    explained="a random number is drawn for every layer in training",
)
"""BART's and Marian's."""


def _drawn(stack: Stack) -> None:
    stack.layer_dropout = max(stack.layer_dropout, 1e-30)  # a number is drawn, and is never below


LAYERS_DRAWN = Deviation(
    name="a random number is drawn for every layer in training", site=TRAINING, apply=each(Stack, _drawn)
)

NO_MASK = "no mask is made here where nothing is padding"
QUERY = {"encoder": "m", "decoder": "s"}
"""The axis of a side's tokens."""


def reads(*, start: int, shiftable: bool) -> Callable[[Any], Reads]:
    """What a model reads whose answers begin with the token `start`. shiftable: see `Reads`."""

    def of(config: Any) -> Reads:
        own = getattr(config, "decoder_vocab_size", config.vocab_size)
        reach = getattr(config, "max_positions", None)  # on either side; T5 has no last one
        own_start = min(start, own - 1)
        return Reads(
            vocab_size=own, positions=False, reach=reach, source=config.vocab_size, start=own_start, shiftable=shiftable
        )

    return of


def _same_for_every_query(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask[:, :, :1]


def mask_of(call: Call) -> Tensor | None:
    """The mask of a side's own tokens that a layer got."""
    return visible(passed(call, "attention_mask"))


def memory_mask_of(call: Call) -> Tensor | None:
    """The mask of the memory that a layer got."""
    return _same_for_every_query(visible(passed(call, "encoder_attention_mask")))


def _bias(side: str, seen: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Relative positions, in families that have them; releases pass them on in several ways."""
    return {"bias": seen[f"{side}.relative"]} if f"{side}.relative" in seen else {}


def _attention_mask(call: Call, otherwise: Tensor) -> Tensor:
    """What an attention block got; what the reference itself used where it got nothing."""
    given = (visible(passed(call, name)) for name in ("attention_mask", "mask"))
    return next((mask for mask in given if mask is not None), otherwise)


def attention_input(side: str) -> Feed:
    """Arguments of self-attention."""

    def feed(call: Call, seen: Mapping[str, Tensor]) -> Arguments:
        mask = _attention_mask(call, seen[f"{side}.mask"])
        return Arguments(hidden(call), mask, cache=LayerCache(), **_bias(side, seen))

    return feed


def cross_input(call: Call, seen: Mapping[str, Tensor]) -> Arguments:
    """Arguments of attention to the memory."""
    mask = _attention_mask(call, seen["decoder.memory_mask"])
    return Arguments(hidden(call), mask, memory=passed(call, "key_value_states"), cache=LayerCache())


def layer_input(side: str) -> Feed:
    """Arguments of a whole layer."""

    def feed(call: Call, seen: Mapping[str, Tensor]) -> Arguments:
        own, memory_mask = mask_of(call), memory_mask_of(call)
        memory = {
            "memory": passed(call, "encoder_hidden_states"),
            "memory_visible": seen["decoder.memory_mask"] if memory_mask is None else memory_mask,
        }
        given = _bias(side, seen) | (memory if side == "decoder" else {})
        return Arguments(hidden(call), seen[f"{side}.mask"] if own is None else own, **given)

    return feed


def probabilities(call: Call) -> Tensor | None:
    """Attention's probabilities: the last of what it returns, behind relative positions where a family has them."""
    least = 3 if hasattr(call.module, "has_relative_attention_bias") else 2
    return call.output[-1] if len(call.output) >= least else None


def begin(side: str, first: str, embedded: str | None = None) -> list[Unit]:
    """What goes into the first layer, which transformers has under this path, and the masks. embedded: the module that gets
    the embedded tokens with their positions, where it is not that layer.
    """

    def seen_by(hf: str, name: str, axes: str, theirs: Callable[[Call], Tensor | None]) -> Unit:
        return Unit(name=f"{side}.{name}", hf=hf, level="block", sites=(Site("", axes, theirs, absent=NO_MASK),))

    tokens = seen_by(embedded or first, "embedded", f"b {QUERY[side]} d", hidden)
    if side == "encoder":
        return [tokens, seen_by(first, "mask", "b 1 1 u", lambda call: _same_for_every_query(mask_of(call)))]
    masks = [seen_by(first, "mask", "b 1 s t", mask_of), seen_by(first, "memory_mask", "b 1 1 u", memory_mask_of)]
    return [tokens, *masks]


def attention(side: str, hf: str) -> Unit:
    """A layer's attention to its own side's tokens; a decoder's keys and values are cached."""
    cached = (held("keys", 0, "b h t e"), held("values", 1, "b h t e")) if side == "decoder" else ()
    axes = {"encoder": "b h m u", "decoder": "b h s t"}[side]
    return Unit(
        name=f"{side}.layers.{{layer}}.attn",
        hf=hf,
        level="block",
        feed=attention_input(side),
        sites=(*cached, Site("probs", axes, probabilities, absent=NO_PROBABILITIES), output(f"b {QUERY[side]} d")),
    )


def cross(hf: str) -> Unit:
    """A decoder layer's attention to the memory, whose keys and values are cached."""
    return Unit(
        name="decoder.layers.{layer}.cross",
        hf=hf,
        level="block",
        feed=cross_input,
        sites=(
            held("keys", 2, "b h m e"),
            held("values", 3, "b h m e"),
            Site("probs", "b h s m", probabilities, absent=NO_PROBABILITIES),
            output("b s d"),
        ),
    )


def layer(side: str, hf: str) -> Unit:
    """A whole layer."""
    axes = f"b {QUERY[side]} d"
    name = f"{side}.layers.{{layer}}"
    return Unit(name=name, hf=hf, level="layer", feed=layer_input(side), sites=(output(axes),))


def part(side: str, name: str, hf: str) -> Unit:
    """A norm, a projection, a feed-forward network of a side."""
    return block(f"{side}.{name}", hf, axes=f"b {QUERY[side]} d")


def end() -> list[Unit]:
    """The head."""
    logits = Site("", "b s v", lambda c: c.output["logits"])
    return [
        block("lm_head", "lm_head", axes="b s v"),
        Unit(name="", hf="", label="logits", level="model", sites=(logits,)),
    ]


def post_norm_units(*, embed_norm: bool) -> Callable[[Any], list[Unit]]:
    """Of BART and of Marian. embed_norm: whether a norm follows the embedding."""
    def of(config: Any) -> list[Unit]:
        found = []
        for side, n_layers in (("encoder", config.n_encoder_layers), ("decoder", config.n_decoder_layers)):
            there = f"model.{side}.layers.{{layer}}."
            network = part(side, "layers.{layer}.ffn", there + "fc1")
            inside = [
                attention(side, there + "self_attn"),
                part(side, "layers.{layer}.attn_norm", there + "self_attn_layer_norm"),
            ]
            if side == "decoder":
                inside += [cross(there + "encoder_attn")]
                inside += [part(side, "layers.{layer}.cross_norm", there + "encoder_attn_layer_norm")]
            inside += [
                replace(network, until=there + "fc2"),
                part(side, "layers.{layer}.ffn_norm", there + "final_layer_norm"),
                layer(side, there.rstrip(".")),
            ]
            norm = f"model.{side}.layernorm_embedding" if embed_norm else None
            found += begin(side, f"model.{side}.layers.0", norm)
            found += [part(side, "embed_norm", norm)] if norm else []
            found += in_layers(inside, config, n_layers)
        return [*found, *end()]

    return of
