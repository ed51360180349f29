"""Departures that families share, block by block. Each is one mistake that a port could make, by its name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import MethodType
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity_tests.harness.record import AS_ONE_READS, FOUND_HERE, Deviation, Known
from reference_impl.attention import Attention, merge_heads, split_heads
from reference_impl.cache import KVCache, LayerCache
from reference_impl.decoder import Decoder
from reference_impl.ffn import GatedFFN
from reference_impl.mla import MLA
from reference_impl.norm import RMSNorm
from reference_impl.position import RopeConfig, RotaryEmbedding, rotate_halves, rotate_pairs

BOOLEAN_MASK_KNOWN = Known(
    name="eager attention adds a boolean mask of four dimensions to the scores",
    smallest="`model(ids, attention_mask=torch.ones(1, 1, s, s).tril().bool())`; sdpa reads it right",
    sites=("mask-4d.bool",),
    attention=("eager",),
    link=FOUND_HERE,
    explained="a boolean mask is added to the scores",
    local=True,
)
PACKED_KNOWN = Known(
    name="several texts in one row see each other when a cache is kept",
    smallest="`model(ids, position_ids=[[0, 1, 2, 0, 1]])` with `use_cache` True, which is the default, and False",
    sites=("packed.with-cache",),
    link=FOUND_HERE,
    explained=AS_ONE_READS,
    local=True,
)
WAYS_KNOWN = (BOOLEAN_MASK_KNOWN, PACKED_KNOWN)
"""Of every decoder built like Llama: a mask is taken as it comes, and positions are looked at where there is no cache."""

Change = Callable[[nn.Module], None]


def each(kind: type[nn.Module] | tuple[type[nn.Module], ...], change: Callable[[Any], None]) -> Change:
    """Change every module of a kind, or of several, in the tree."""

    def apply(root: nn.Module) -> None:
        for module in list(root.modules()):
            if isinstance(module, kind):
                change(module)

    return apply


def forward_of(kind: type[nn.Module], forward: Callable[..., Any]) -> Change:
    """Replace the forward of every module of a kind."""
    return each(kind, lambda module: setattr(module, "forward", MethodType(forward, module)))


def constant(name: str, value: Any) -> Callable[[Any], None]:
    """Set an attribute."""
    return lambda module: setattr(module, name, value)


# --- RMSNorm ---


def _eps_outside(self: RMSNorm, x: Tensor) -> Tensor:
    return self.weight * (x / ((x * x).mean(-1, keepdim=True).sqrt() + self.eps))


def _mean_subtracted(self: RMSNorm, x: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return self.weight * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps))


def _one_plus_weight(self: RMSNorm, x: Tensor) -> Tensor:
    return (1 + self.weight) * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps))


RMS_NORM = (
    Deviation(name="eps added outside the root", site="attn_norm", apply=forward_of(RMSNorm, _eps_outside)),
    Deviation(name="eps is 1e-6 whatever the config says", site="attn_norm", apply=each(RMSNorm, constant("eps", 1e-6))),
    Deviation(name="the mean is subtracted, as in LayerNorm", site="attn_norm", apply=forward_of(RMSNorm, _mean_subtracted)),
    Deviation(name="norm multiplies with 1 + weight", site="attn_norm", apply=forward_of(RMSNorm, _one_plus_weight)),
)

# --- RoPE ---


def with_rope(**changes: Any) -> Change:
    """Change what the rotary tables are made of."""

    def change(module: RotaryEmbedding) -> None:
        module.config = RopeConfig(**{**vars(module.config), **changes})

    return each(RotaryEmbedding, change)


def _backwards(rotate: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, cos, sin: rotate(x, cos, -sin)


def _other_pairing(module: Attention) -> None:
    module.rotate = rotate_pairs if module.rotate is rotate_halves else rotate_halves


def _reordered(shape: tuple[int, int]) -> Callable[[Attention], None]:
    """The rows of each head of q and k, seen in this shape, transposed: (2, -1) halves to pairs, (-1, 2) pairs to halves."""

    def change(module: Attention) -> None:
        for projection, heads in ((module.q_proj, module.n_heads), (module.k_proj, module.n_kv_heads)):
            for name, parameter in list(projection.named_parameters()):
                rows = parameter.detach().unflatten(0, (heads, *shape)).transpose(1, 2).flatten(0, 2)
                setattr(projection, name, nn.Parameter(rows, requires_grad=False))

    return change


THETA = Deviation(name="theta is 10000 whatever the config says", site="rope.cos", apply=with_rope(theta=10000.0))


# --- attention ---


def bare_bias(*names: str) -> Callable[[Any], None]:
    def change(module: nn.Module) -> None:
        for name in names:
            getattr(module, name).bias = None

    return change


def _default_scale(module: Attention) -> None:
    module.scale = (module.q_proj.in_features / module.n_heads) ** -0.5


def _tiled(module: Attention) -> None:
    """Query heads g, g + n_kv, … share a key head, as `repeat` has it, instead of neighbours."""
    group = module.n_heads // module.n_kv_heads
    module.repeat = lambda x: x.repeat(1, group, 1, 1)


def _cached_unrotated(module: Attention) -> None:
    """Keys are kept as they come from the projection; queries are rotated alone."""
    rotate, calls = module.rotate, []

    def every_second(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        calls.append(None)
        return rotate(x, cos, sin) if len(calls) % 2 else x

    module.rotate = every_second


def _rotated_values(module: Attention) -> None:
    forward, projection = module.forward, module.v_proj

    def also_values(self: Attention, x: Tensor, rope: Any, visible: Tensor, cache: Any = None) -> Tensor:
        def rotated(input: Tensor) -> Tensor:
            v = F.linear(input, projection.weight, projection.bias)
            return merge_heads(self.rotate(split_heads(v, self.n_kv_heads), *rope))

        projection.forward = rotated
        return forward(x, rope, visible, cache)

    module.forward = MethodType(also_values, module)


ATTENTION = (
    Deviation(name="halves and pairs confused in RoPE", site="attn.keys", apply=each(Attention, _other_pairing)),
    Deviation(name="q and k not permuted", site="attn.keys", apply=each(Attention, _reordered((2, -1)))),
    Deviation(name="q and k permuted once more", site="attn.keys", apply=each(Attention, _reordered((-1, 2)))),
    Deviation(
        name="RoPE turns the other way",
        site="attn.keys",
        apply=each(Attention, lambda m: setattr(m, "rotate", _backwards(m.rotate))),
    ),
    Deviation(name="keys are not rotated", site="attn.keys", apply=each(Attention, _cached_unrotated)),
    Deviation(name="values are rotated too", site="attn.values", apply=each(Attention, _rotated_values)),
    Deviation(name="scores are not scaled", site="attn.probs", apply=each(Attention, constant("scale", 1.0))),
    Deviation(
        name="scale from d_model / n_heads instead of d_head",
        site="attn.probs",
        apply=each(Attention, _default_scale),
        variants=("mqa", "biased", "head_dim", "tied", "rope-*"),
    ),
    Deviation(
        name="key heads tiled instead of repeated side by side",
        site="attn.probs",
        apply=each(Attention, _tiled),
        variants=("gqa", "head_dim", "tied", "rope-*", "biased"),
    ),
    Deviation(
        name="bias of q, k and v dropped",
        site="attn.keys",
        apply=each(Attention, bare_bias("q_proj", "k_proj", "v_proj")),
        variants=("biased",),
    ),
    Deviation(
        name="bias of the output projection dropped",
        site="attn",
        apply=each(Attention, bare_bias("o_proj")),
        variants=("biased",),
    ),
)

# --- masks ---


def _one_ahead(visible: Tensor) -> Tensor:
    ahead = visible.clone()
    ahead[..., 1:] |= visible[..., :-1]
    return ahead


def _own_slot_hidden(visible: Tensor) -> Tensor:
    s, t = visible.shape[-2:]
    own = torch.eye(t, dtype=torch.bool, device=visible.device)[t - s :]
    return visible & ~(own & (torch.arange(t, device=visible.device) > 0))


def _padding_shown(visible: Tensor) -> Tensor:
    s, t = visible.shape[-2:]
    return torch.ones(s, t, dtype=torch.bool, device=visible.device).tril(t - s).expand_as(visible)


def masks(kind: type[nn.Module]) -> tuple[Deviation, ...]:
    """Departures of the mask of a decoder of this kind, which makes one for all layers."""

    def masked(change: Callable[[Tensor], Tensor]) -> Change:
        return each(kind, lambda model: setattr(model.mask, "forward", change))

    return (
        Deviation(name="a query sees one token ahead", site="mask", apply=masked(_one_ahead)),
        Deviation(name="a query does not see itself", site="mask", apply=masked(_own_slot_hidden)),
        Deviation(name="padding is visible", site="mask", apply=masked(_padding_shown)),
    )


def _softmax_of_the_sum(scores: Tensor, visible: Tensor) -> Tensor:
    return (scores + visible).softmax(-1)


def _mask_added(module: Any) -> None:
    forward, home = module.forward, sys.modules[type(module).__module__]

    def added(*args: Any) -> Tensor:
        with patch.object(home, "softmax_attention", _softmax_of_the_sum):
            return forward(*args)

    module.forward = added


MASK = (
    *masks(Decoder),
    Deviation(name="a boolean mask is added to the scores", site="attn.probs", apply=each((Attention, MLA), _mask_added)),
)

# --- feed-forward ---


def _gate_and_up_swapped(module: GatedFFN) -> None:
    module.gate_proj, module.up_proj = module.up_proj, module.gate_proj


def gated_ffn(variants: tuple[str, ...] = ("*",)) -> tuple[Deviation, ...]:
    """Of variants whose first layer has a GatedFFN as its channel mixer."""
    swapped = each(GatedFFN, _gate_and_up_swapped)
    gelu = each(GatedFFN, constant("activation", F.gelu))
    return (
        Deviation(name="gate and up swapped", site="ffn", apply=swapped, variants=variants),
        Deviation(name="gelu for silu", site="ffn", apply=gelu, variants=variants),
    )


FFN_BIAS = Deviation(
    name="bias of the feed-forward network dropped",
    site="ffn",
    apply=each(GatedFFN, bare_bias("gate_proj", "up_proj", "down_proj")),
    variants=("biased",),
)

# --- layer and trunk ---


def _post_norm(self: Any, x: Tensor, rope: Any, visible: Tensor, cache: Any = None) -> Tensor:
    z = self.attn_norm(x + self.attn(x, rope, self.mask(visible), cache))
    return self.ffn_norm(z + self.ffn(z))


def _parallel(self: Any, x: Tensor, rope: Any, visible: Tensor, cache: Any = None) -> Tensor:
    return x + self.attn(self.attn_norm(x), rope, self.mask(visible), cache) + self.ffn(self.ffn_norm(x))


def pre_norm_layer(kind: type[nn.Module]) -> tuple[Deviation, ...]:
    """Departures of a layer with `attn_norm`, `attn`, `ffn_norm` and `ffn`."""
    return (
        Deviation(name="norm after the residual", site="layer", apply=forward_of(kind, _post_norm)),
        Deviation(name="attention and feed-forward in parallel", site="layer", apply=forward_of(kind, _parallel)),
    )


def _embedding_scaled(model: Decoder) -> None:
    scale = model.embed.embedding_dim**0.5
    model.embed.forward = lambda input: F.embedding(input, model.embed.weight) * scale


def _lexical(model: Decoder) -> None:
    order = sorted(range(len(model.layers)), key=str)
    model.layers = nn.ModuleList(model.layers[i] for i in order)


def _last_norm_left_out(model: Decoder) -> None:
    model.norm.forward = lambda x: x


def _restarting(model: Any) -> None:
    forward = model.forward

    def restarted(ids: Tensor, *, positions: Any = None, **given: Any) -> Tensor:
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        return forward(ids, positions=positions, **given)

    model.forward = restarted


class _Prepending(LayerCache):
    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if self.keys is not None and self.values is not None:
            keys, values = torch.cat([keys, self.keys], -2), torch.cat([values, self.values], -2)
        self.keys, self.values = keys, values
        return keys, values


class _OneSlotEarly(LayerCache):
    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if self.keys is not None and self.values is not None:
            keys, values = (
                torch.cat([held[..., :-1, :], new, torch.zeros_like(new[..., :1, :])], -2)
                for held, new in ((self.keys, keys), (self.values, values))
            )
        self.keys, self.values = keys, values
        return keys, values


def caches(kind: type[nn.Module]) -> tuple[Deviation, ...]:
    """Departures that only a run over a cache shows, of a decoder of this kind."""

    def of(entry: type[LayerCache]) -> Change:
        def change(model: Any) -> None:
            made = model.new_cache

            def new_cache() -> KVCache:
                cache = made()
                cache.layers = [entry(right.memory) for right in cache.layers]
                return cache

            model.new_cache = new_cache

        return each(kind, change)

    return (
        Deviation(name="positions restart after the cache", site="cache", apply=each(kind, _restarting)),
        Deviation(name="the cache puts new keys before the old", site="cache", apply=of(_Prepending)),
        Deviation(name="the cache writes one slot early", site="cache", apply=of(_OneSlotEarly)),
    )


def trunk(*, many_layers: tuple[str, ...]) -> tuple[Deviation, ...]:
    """Departures of the decoder as a whole. many_layers: the variants with more than ten."""
    return (
        Deviation(name="embedding scaled by the root of d_model", site="embed", apply=each(Decoder, _embedding_scaled)),
        Deviation(name="layers in lexical order", site="attn_norm", apply=each(Decoder, _lexical), variants=many_layers),
        Deviation(name="last norm left out", site="norm", apply=each(Decoder, _last_norm_left_out)),
        *caches(Decoder),
    )
