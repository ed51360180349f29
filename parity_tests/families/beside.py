"""What forwards give beside logits, and where the reference has it: data that families share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parity_tests.harness.record import Beside, Known, Unit

Sites = Callable[[Sequence[Unit]], list[str]]


def _layers(units: Sequence[Unit], side: str) -> list[str]:
    return [unit.name for unit in units if unit.level == "layer" and unit.name.startswith(side)]


def _each(side: str, begins: str, ends: str | None) -> Sites:
    """What goes into the first layer, and what comes out of each; normed by `ends` for the last."""

    def sites(units: Sequence[Unit]) -> list[str]:
        layers = _layers(units, side)
        return [side + begins, *(layers if ends is None else [*layers[:-1], side + ends])]

    return sites


def _each_and_normed(units: Sequence[Unit]) -> list[str]:
    """What goes into every layer but the first, into the norm, and out of it."""
    return [*(f"{name}:in" for name in [*_layers(units, "")[1:], "norm"]), "norm"]


def _probabilities(block: str) -> Sites:
    return lambda units: [f"{unit.name}.probs" for unit in units if _is(unit.name, block)]


def _is(name: str, block: str) -> bool:
    """Whether this is a block of a layer by its name, on the side that stands before it."""
    side, _, last = block.rpartition(".")
    return name.startswith(f"{side}.layers." if side else "layers.") and name.endswith(f".{last}")


def _named(name: str) -> Sites:
    return lambda units: [name] if any(unit.name == name for unit in units) else []


def hidden_states(begins: str = "embed", ends: str | None = None, side: str = "", axes: str = "b s d") -> Beside:
    """Before the first layer and after each. begins: the site of the one, ends: that of the last, where a norm follows it."""
    before = f"{side}_" if side else ""
    sites = _each(f"{side}." if side else "", begins, ends)
    return Beside(name=f"{before}hidden_states", sites=sites, axes=axes, switch="output_hidden_states")


AFTER_LAYERS = Beside(name="hidden_states", sites=_each_and_normed, axes="b s d", switch="output_hidden_states")
"""Of Mamba and RWKV, otherwise than documented: not before the first layer, and after the last also normed."""


def attentions(block: str = "attn", name: str = "attentions", axes: str = "b h s t") -> Beside:
    """Attention's probabilities, layer by layer."""
    return Beside(name=name, sites=_probabilities(block), axes=axes, switch="output_attentions")


CROSS_ATTENTIONS = attentions("cross", "cross_attentions", "b h s m")

ROUTER_LOGITS = Beside(
    name="router_logits",
    sites=lambda units: [f"{unit.name}.logits" for unit in units if unit.routes is not None],
    axes="n x",
    switch="output_router_logits",
)
"""Of the layers that have experts."""

NEXT_SENTENCE = Beside(name="seq_relationship_logits", sites=_named("nsp_head"), axes="b k", alone=True)

DECODER = (hidden_states(ends="norm"), attentions())
"""A trunk like Llama's."""

MIXTURE = (*DECODER, ROUTER_LOGITS)


def two_sides(begins: str, ends: str | None = None) -> tuple[Beside, ...]:
    """Of an encoder-decoder, whose two sides begin and end alike."""
    last = ends or ""
    return (
        hidden_states(begins, ends, "encoder", "b m d"),
        hidden_states(begins, ends, "decoder"),
        attentions("encoder.attn", "encoder_attentions", "b h m u"),
        attentions("decoder.attn", "decoder_attentions"),
        attentions("decoder.cross", "cross_attentions", "b h s m"),
        Beside(
            name="encoder_last_hidden_state",
            sites=lambda units: [f"encoder.{last}" if last else _layers(units, "encoder.")[-1]],
            axes="b m d",
            alone=True,
        ),
    )


def no_tuple_by_config(since: str) -> Known:
    """Of families whose heads read by name what their trunk then gives as a tuple."""
    return Known(
        name="return_dict=False cannot be said by the config, only by the call",
        sites=("tuple.by-config",),
        since=since,
        link="measured in 4.57.6 and 5.24.0",
        raises="AttributeError",
    )
