"""Departures of attention in the families whose queries see a window, or whose queries and keys are normed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from parity_tests.families import deviations as shared
from parity_tests.families.deviations import Change, each, forward_of
from parity_tests.harness.record import FOUND_HERE, Alone, Deviation, Known
from reference_impl.attention import Attention, merge_heads, softmax_attention, split_heads
from reference_impl.cache import KVCache, LayerCache
from reference_impl.decoder import Decoder
from reference_impl.norm import RMSNorm

Windows = list[int | None]

ALONE = Alone(
    variants=("every-*",),
    sites=("mask", "attn.probs", "attn", "logits"),
    levels=("config", "block", "model", "cache", "generation"),
)
"""A window shows in the mask, and in what a cache still holds."""

# --- windows ---


def _windows(change: Callable[[Windows], Sequence[int | None]]) -> Change:
    return each(Decoder, lambda model: setattr(model, "windows", list(change(model.windows))))


def _size(windows: Windows) -> int | None:
    return next((window for window in windows if window is not None), None)


def _one_layer_late(windows: Windows) -> Windows:
    first = next((layer for layer, window in enumerate(windows) if window is not None), None)
    return [None if layer == first else window for layer, window in enumerate(windows)]


def _by_position(model: Decoder) -> None:
    """Distances between positions instead of slots: the same but where a position is skipped."""
    forward, windows, given = model.forward, model.windows, {}
    layers: list[Any] = list(model.layers)

    def outer(ids: Tensor, *, positions: Any = None, real: Any = None, cache: KVCache | None = None) -> Tensor:
        given["positions"] = torch.arange(ids.shape[1]).expand(ids.shape) if positions is None else positions
        return forward(ids, positions=positions, real=real, cache=cache)

    def within(window: int) -> Callable[[Tensor], Tensor]:
        def near(visible: Tensor) -> Tensor:
            p = given["positions"]
            return visible & (p[:, None, :, None] - p[:, None, None, :] < window)

        return near

    for layer, window in zip(layers, windows, strict=True):
        if window is not None:
            layer.mask.forward = within(window)
    _windows(lambda windows: [None] * len(windows))(model)
    model.forward = outer


def _one_key_short(model: Decoder) -> None:
    """Layers keep the keys of window - 2 tokens, so that the oldest which the next query should see is gone."""
    shorter = [window and window - 1 for window in model.windows]
    model.new_cache = lambda: KVCache(len(shorter), windows=shorter)


def _everything_in_steps(model: Decoder) -> None:
    """Layers with a window of one keep all keys, and the mask of a single token, one key wide, is that of them all: it sees
    each, or none where it is padding itself.
    """
    windows = model.windows
    layers: list[Any] = list(model.layers)
    model.new_cache = lambda: KVCache(len(windows), windows=[None if window == 1 else window for window in windows])
    for layer, window in zip(layers, windows, strict=True):
        if window == 1:
            layer.mask.forward = lambda visible: visible[..., -1:].expand_as(visible) if visible.shape[-2] == 1 else visible


OF_ONE = Deviation(
    name="a window of one token is forgotten in steps",
    site="cache",
    apply=each(Decoder, _everything_in_steps),
    variants=("window-1", "every-1*"),
)


def _by_config(model: Any) -> Windows:
    return [model.config.window if layer in model.config.window_layers else None for layer in range(len(model.layers))]


def _from_the_first(windows: Callable[[Any], Windows]) -> Callable[[Decoder], None]:
    """Of a layer whose cache keeps a window, each key that is still held is hidden or seen as the key that many places behind
    the first token is: of the mask's columns the first are taken, and not the last. windows: those of the caches.
    """

    def apply(model: Decoder) -> None:
        layers: list[Any] = list(model.layers)

        def first(layer: int) -> Callable[[Tensor], Tensor]:
            def columns(visible: Tensor) -> Tensor:
                window, (new, all_tokens) = windows(model)[layer], visible.shape[-2:]
                return visible if window is None else visible[..., : min(all_tokens - new, window - 1) + new]

            return columns

        for i, layer in enumerate(layers):
            layer.mask.forward = first(i)
        model.new_cache = lambda: KVCache(len(layers), windows=windows(model))

    return apply


AT_THE_EDGE = tuple(f"dynamic.window.{kind}" for kind in ("ones", "below", "at", "above", "across"))
"""The schedules that a window of more than one token makes."""

FROM_THE_FIRST = tuple(
    Deviation(
        name=f"over a cache{which}, the mask counts from the first token",
        site="cache",
        apply=each(Decoder, apply),
        variants=live,
    )
    for which, apply, live in (
        ("", _from_the_first(lambda model: list(model.windows)), ("top-layers", "every-4")),
        (" that keeps a window where the config says so", _from_the_first(_by_config), ("window",)),
    )
)


def windows(live: tuple[str, ...]) -> tuple[Deviation, ...]:
    """Of variants with a window that is longer than 1 token and shorter than the prompt."""

    def of(name: str, change: Callable[[Windows], Sequence[int | None]]) -> Deviation:
        return Deviation(name=name, site="mask", apply=_windows(change), variants=live)

    return (
        of("the window is one token wider", lambda windows: [w and w + 1 for w in windows]),
        of("the window is one token narrower", lambda windows: [w and w - 1 for w in windows]),
        of("the window is ignored", lambda windows: [None] * len(windows)),
        Deviation(
            name="the window counts positions instead of slots",
            site="mask",
            apply=each(Decoder, _by_position),
            variants=live,
        ),
        Deviation(
            name="the cache of a window keeps one key too few",
            site="cache",
            apply=each(Decoder, _one_key_short),
            variants=live,
        ),
    )


def window_layers(mixed: tuple[str, ...]) -> tuple[Deviation, ...]:
    """Of variants in which some layers have a window and some have none."""

    def of(name: str, change: Callable[[Windows], Sequence[int | None]]) -> Deviation:
        return Deviation(name=name, site="mask", apply=_windows(change), variants=mixed)

    return (
        of("every layer has the window", lambda windows: [_size(windows)] * len(windows)),
        of("the other layers have the window", lambda windows: [None if w else _size(windows) for w in windows]),
        of("the window begins one layer late", _one_layer_late),
    )


def unused_window(size: int, variants: tuple[str, ...]) -> Deviation:
    """Of variants that give a size and do not use it."""
    return Deviation(
        name="the window is applied although use_sliding_window is false",
        site="mask",
        apply=_windows(lambda windows: [size] * len(windows)),
        variants=variants,
    )


# --- QK-norm ---


def _norms(change: Callable[[Any], None]) -> Change:
    return each(Attention, change)


def _left_out(*names: str) -> Callable[[Any], None]:
    def change(module: Attention) -> None:
        for name in names:
            getattr(module, name).forward = lambda x: x

    return change


def _behind_rope(self: Attention, x: Tensor, rope: Any, visible: Tensor, cache: LayerCache | None = None) -> Tensor:
    q = self.q_norm(self.rotate(split_heads(self.q_proj(x), self.n_heads), *rope))
    k = self.k_norm(self.rotate(split_heads(self.k_proj(x), self.n_kv_heads), *rope))
    v = split_heads(self.v_proj(x), self.n_kv_heads)
    k, v = cache.append(k, v) if cache is not None else (k, v)
    k, v = self.keys(k), self.values(v)
    scores = q @ self.repeat(k).mT * self.scale
    p = self.probs(softmax_attention(scores, visible[..., -k.shape[-2] :]))
    return self.o_proj(merge_heads(p @ self.repeat(v)))


def _over_all_heads(self: RMSNorm, x: Tensor) -> Tensor:
    mean_square = (x * x).mean((1, 3), keepdim=True)
    return self.weight * (x * torch.rsqrt(mean_square + self.eps))


def _at_once(module: Attention) -> None:
    for norm in (module.q_norm, module.k_norm):
        norm.forward = MethodType(_over_all_heads, norm)


def _swapped(module: Attention) -> None:
    module.q_norm, module.k_norm = module.k_norm, module.q_norm


def _own_eps(module: Any) -> None:
    for norm in (module.q_norm, module.k_norm):
        norm.eps = 1e-6


def _values_too(module: Attention) -> None:
    project = module.v_proj.forward

    def normed(input: Tensor) -> Tensor:
        v = project(input).unflatten(-1, (module.n_kv_heads, -1))
        return module.k_norm(v).flatten(-2)

    module.v_proj.forward = normed


QK_NORM = (
    Deviation(name="QK-norm left out", site="attn.q_norm", apply=_norms(_left_out("q_norm", "k_norm"))),
    Deviation(name="QK-norm for queries alone", site="attn.k_norm", apply=_norms(_left_out("k_norm"))),
    Deviation(name="QK-norm over all heads at once", site="attn.q_norm", apply=_norms(_at_once)),
    Deviation(name="norms of queries and keys swapped", site="attn.q_norm", apply=_norms(_swapped)),
    Deviation(name="QK-norm with an eps of its own", site="attn.q_norm", apply=_norms(_own_eps)),
    Deviation(name="QK-norm behind RoPE", site="attn.keys", apply=forward_of(Attention, _behind_rope)),
    Deviation(name="values are normed too", site="attn.values", apply=_norms(_values_too)),
)

# --- what these families share with Llama ---


def attention(**places: tuple[str, ...]) -> tuple[Deviation, ...]:
    """Llama's departures of attention, where these families have them: in the variants given, or nowhere.

    narrow: d_head is not d_model / n_heads. grouped: query heads share key heads, in more than one group. qkv_bias,
    out_bias: there is one.
    """
    named = {
        "scale from d_model / n_heads instead of d_head": places.get("narrow", ()),
        "key heads tiled instead of repeated side by side": places.get("grouped", ()),
        "bias of q, k and v dropped": places.get("qkv_bias", ()),
        "bias of the output projection dropped": places.get("out_bias", ()),
    }
    found = (replace(deviation, variants=named.get(deviation.name, ("*",))) for deviation in shared.ATTENTION)
    return tuple(deviation for deviation in found if deviation.variants)



LONGEST = 45
"""Of the texts that are compared."""


def within_reach(config: Any) -> bool:
    """Of windows shorter than the longest text that is compared: of longer ones nothing shows."""
    return config.window is not None and config.window < LONGEST


def in_some_layers(config: Any) -> bool:
    """Of those that not every layer has."""
    return within_reach(config) and len(config.window_layers) < config.n_layers


def _of_one(config: Any) -> bool:
    return config.window == 1


_STEPS_AT_ONE = ("dynamic.window.ones", "dynamic.window.above")
_HELD = ("dynamic.steps.held", "cache.held", "cache.training")

WINDOW_OF_ONE = (
    Known(
        name="a window of one token is forgotten by the dynamic cache, and a step sees everything",
        smallest="`sliding_window=1`, five tokens, then one",
        sites=("dynamic.steps", *_STEPS_AT_ONE, *_HELD, "greedy", "left-padded.alone", "eos"),
        since="4.56.0",  # until then the dynamic cache kept all tokens of every layer, and the mask said which count
        where=_of_one,
        attention=("eager",),
        link=FOUND_HERE,
        explained="a window of one token is forgotten in steps",
        local=True,  # a static cache keeps the window
    ),
    Known(
        name="a window of one token is forgotten by the dynamic cache, and a step of generate sees padding at position 0",
        sites=("left-padded", "left-padded.equals-alone"),
        since="5.2.0",
        where=_of_one,
        attention=("eager",),
        link=FOUND_HERE,
        explained="a window of one token is forgotten in steps",
        local=True,
    ),
    Known(
        name="a window of one token is forgotten by the dynamic cache, and a step of generate sees padding at position 1",
        sites=("left-padded", "left-padded.equals-alone"),
        since="4.56.0",
        until="5.2.0",
        where=_of_one,
        attention=("eager",),
        link="measured: where generate put padding until 5.2",
        unexplained="padding has no position of its own, and here it is seen",
    ),
    Known(
        name="a window of one token is forgotten by the dynamic cache, and a step sees even padding",
        sites=("dynamic.steps", "left-padded", "left-padded.equals-alone"),
        since="4.56.0",
        where=_of_one,
        attention=("sdpa",),
        link=FOUND_HERE,
        unexplained="what sdpa makes of padding has no meaning, and here it is seen",
    ),
    Known(
        name="a window of one token is forgotten by the dynamic cache, which holds all",
        sites=(*_HELD, "greedy", "left-padded.alone", "eos"),
        since="4.56.0",
        where=_of_one,
        attention=("sdpa",),
        link=FOUND_HERE,
        explained="a window of one token is forgotten in steps",
        local=True,
    ),
    Known(
        name="a window of one token is forgotten by the dynamic cache, and several tokens meet a mask of another width",
        smallest="`sliding_window=1`, five tokens, then two",
        sites=("dynamic.chunks", "dynamic.window.across", "dynamic.chunks.held", "prefilled"),
        since="4.56.0",
        where=_of_one,
        link=FOUND_HERE,
        raises="RuntimeError",
    ),
)

WAYS_KNOWN = (
    shared.BOOLEAN_MASK_KNOWN,
    replace(shared.PACKED_KNOWN, where=lambda config: config.window != 1),
)
"""Llama's, but that through a window of one token no text sees another."""
