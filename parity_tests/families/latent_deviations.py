"""Departures of MLA, and what is known of transformers'."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from parity_tests.families.deviations import bare_bias, each
from parity_tests.harness.record import Deviation, Known
from reference_impl.decoder import Decoder
from reference_impl.mla import MLA
from reference_impl.norm import RMSNorm
from reference_impl.position import rotate_gathered, rotate_halves

KNOWN = (
    Known(
        name="the cache holds expanded keys and values",
        sites=("attn.latent", "attn.rope_key", "dynamic.steps.held", "dynamic.chunks.held", "cache.held", "cache.training"),
        until="5.15.0",
        link="measured: shapes (b, h, t, d) up to 5.14",
        unexplained="a cache of expanded keys and values has no latent that could be compared",
    ),
    Known(
        name="a static cache cannot hold values narrower than keys",
        sites=("static.steps", "static.chunks", "static.length.at", "static.length.across"),
        until="5.0.0",
        link="measured: in index_copy_",
        raises="RuntimeError",
    ),
    Known(
        name="the weights of a router are rounded when the model is cast",
        sites=("cast",),
        until="5.24.0",
        where=lambda config: config.n_dense_layers < config.n_layers,
        precisions=("bf16", "f16"),
        link="measured, release by release; until 5.0 the bias was, too",
        unexplained="it is one of rounding, which no deviation in float64 shows",
    ),
)


def _scale(power: int) -> Any:
    """1 / sqrt(width), with mscale to this power instead of the second."""

    def change(module: MLA) -> None:
        plain = (module.d_nope + module.d_rope) ** -0.5
        module.scale = plain * (module.scale / plain) ** (power / 2)

    return change


def _scale_of_nope(module: MLA) -> None:
    module.scale = module.d_nope**-0.5


def _other_pairing(module: MLA) -> None:
    module.rotate = rotate_gathered if module.rotate is rotate_halves else rotate_halves


def _latent_norms_with_the_models_eps(model: Decoder) -> None:
    for module in list(model.modules()):
        if isinstance(module, MLA):
            for norm in (module.kv_norm, getattr(module, "q_norm", None)):
                if norm is not None:
                    norm.eps = model.norm.eps


def _left_out(name: str) -> Any:
    def change(module: MLA) -> None:
        norm: RMSNorm | None = getattr(module, name, None)
        if norm is not None:
            norm.forward = lambda x: x

    return change


def _k_and_v_swapped(module: MLA) -> None:
    """kv_b_proj's rows of each head read as value, key instead of key, value."""
    by_head = module.kv_b_proj.weight.detach().unflatten(0, (module.n_heads, -1))
    value, key = by_head.split([module.d_v, module.d_nope], 1)
    module.kv_b_proj.weight = nn.Parameter(torch.cat([key, value], 1).flatten(0, 1), requires_grad=False)


def _rope_before_nope(module: MLA) -> None:
    query = module.query

    def reordered(self: MLA, x: Tensor) -> Tensor:
        heads = query(x).unflatten(-1, (self.n_heads, -1))
        rope, nope = heads.split([self.d_rope, self.d_nope], -1)
        return torch.cat([nope, rope], -1).flatten(-2)

    module.query = MethodType(reordered, module)


def _rope_key_not_rotated(module: MLA) -> None:
    rotate = module.rotate

    def queries_only(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turned = rotate(x, cos, sin)
        return turned if x.shape[1] == module.n_heads else rotate(x, torch.ones_like(cos), torch.zeros_like(sin))

    module.rotate = queries_only


def mla(
    *, yarn: tuple[str, ...], q_latent: tuple[str, ...], no_q_latent: tuple[str, ...], biased: tuple[str, ...]
) -> tuple[Deviation, ...]:
    """Of a family with MLA. In which variants YaRN sets mscale, queries have a latent or none, and projections a bias."""
    eps = each(Decoder, _latent_norms_with_the_models_eps)
    return (
        Deviation(name="softmax scale without mscale", site="attn.probs", apply=each(MLA, _scale(0)), variants=yarn),
        Deviation(name="mscale once instead of squared", site="attn.probs", apply=each(MLA, _scale(1)), variants=yarn),
        Deviation(name="scale from d_nope alone", site="attn.probs", apply=each(MLA, _scale_of_nope)),
        Deviation(name="halves and pairs confused in RoPE", site="attn.rope_key", apply=each(MLA, _other_pairing)),
        Deviation(name="the shared key is not rotated", site="attn.rope_key", apply=each(MLA, _rope_key_not_rotated)),
        Deviation(name="latent norms use rms_norm_eps", site="attn.kv_norm", apply=eps, variants=no_q_latent),
        Deviation(name="latent norms use rms_norm_eps", site="attn.q_norm", apply=eps, variants=q_latent),
        Deviation(
            name="the norm of the query's latent left out",
            site="attn.q_norm",
            apply=each(MLA, _left_out("q_norm")),
            variants=q_latent,
        ),
        Deviation(name="the latent is not normed", site="attn.kv_norm", apply=each(MLA, _left_out("kv_norm"))),
        Deviation(name="k and v swapped in kv_b_proj", site="attn.probs", apply=each(MLA, _k_and_v_swapped)),
        Deviation(name="a query's rotary part taken first", site="attn.probs", apply=each(MLA, _rope_before_nope)),
        Deviation(
            name="bias of the latent projections dropped",
            site="attn.latent",
            apply=each(MLA, bare_bias("q_a_proj", "kv_a_proj")),
            variants=biased,
        ),
        Deviation(
            name="bias of the output projection dropped",
            site="attn",
            apply=each(MLA, bare_bias("o_proj")),
            variants=biased,
        ),
    )
