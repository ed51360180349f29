"""Departures of MLA and of DeepSeek's mixture of experts."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from parity_tests.families.deviations import bare_bias, constant, each, forward_of
from parity_tests.harness.record import Deviation
from reference_impl.decoder import Decoder
from reference_impl.mla import MLA
from reference_impl.moe import DeepSeekMoE, Experts, GroupedRouter
from reference_impl.norm import RMSNorm
from reference_impl.position import rotate_gathered, rotate_halves

# --- MLA ---


def _scale(power: int) -> Any:
    """1 / sqrt(width), with mscale to this power instead of the second."""

    def change(module: MLA) -> None:
        plain = (module.d_nope + module.d_rope) ** -0.5
        module.scale = plain * (module.scale / plain) ** (power / 2)

    return change


def _scale_of_nope(module: MLA) -> None:
    module.scale = module.d_nope**-0.5


def _other_pairing(module: MLA) -> None:
    module.rotate = rotate_halves if module.rotate is rotate_gathered else rotate_gathered


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


MLA_BLOCK = (
    Deviation(name="softmax scale without mscale", site="attn.probs", apply=each(MLA, _scale(0)), variants=("yarn",)),
    Deviation(name="mscale once instead of squared", site="attn.probs", apply=each(MLA, _scale(1)), variants=("yarn",)),
    Deviation(name="scale from d_nope alone", site="attn.probs", apply=each(MLA, _scale_of_nope)),
    Deviation(name="halves and pairs confused in RoPE", site="attn.rope_key", apply=each(MLA, _other_pairing)),
    Deviation(name="the shared key is not rotated", site="attn.rope_key", apply=each(MLA, _rope_key_not_rotated)),
    Deviation(
        name="latent norms use rms_norm_eps",
        site="attn.kv_norm",
        apply=each(Decoder, _latent_norms_with_the_models_eps),
        variants=("no-q-lora",),
    ),
    Deviation(
        name="latent norms use rms_norm_eps",
        site="attn.q_norm",
        apply=each(Decoder, _latent_norms_with_the_models_eps),
        variants=("base", "yarn", "half-rope", "no-renorm", "shared-2", "biased", "negative-bias"),
    ),
    Deviation(
        name="the norm of the query's latent left out",
        site="attn.q_norm",
        apply=each(MLA, _left_out("q_norm")),
        variants=("base", "yarn", "half-rope", "no-renorm", "shared-2", "biased", "negative-bias"),
    ),
    Deviation(name="the latent is not normed", site="attn.kv_norm", apply=each(MLA, _left_out("kv_norm"))),
    Deviation(name="k and v swapped in kv_b_proj", site="attn.probs", apply=each(MLA, _k_and_v_swapped)),
    Deviation(name="a query's rotary part taken first", site="attn.probs", apply=each(MLA, _rope_before_nope)),
    Deviation(
        name="bias of the latent projections dropped",
        site="attn.latent",
        apply=each(MLA, bare_bias("q_a_proj", "kv_a_proj")),
        variants=("biased",),
    ),
    Deviation(
        name="bias of the output projection dropped",
        site="attn",
        apply=each(MLA, bare_bias("o_proj")),
        variants=("biased",),
    ),
)

# --- the router ---


def _choosing(choose: Any) -> Any:
    return each(GroupedRouter, lambda router: setattr(router, "choose", MethodType(choose, router)))


def _masked_with_zero(self: GroupedRouter, biased: Tensor) -> Tensor:
    return _grouped(self, biased, best=2, rest=0.0)


def _best_expert_scores_the_group(self: GroupedRouter, biased: Tensor) -> Tensor:
    return _grouped(self, biased, best=1, rest=-torch.inf)


def _grouped(self: GroupedRouter, biased: Tensor, best: int, rest: float) -> Tensor:
    by_group = biased.unflatten(-1, (self.n_groups, -1))
    group = by_group.topk(best, -1).values.sum(-1).topk(self.top_groups, -1).indices
    allowed = torch.zeros(by_group.shape[:-1], dtype=torch.bool).scatter(-1, group, True)
    return by_group.masked_fill(~allowed[..., None], rest).flatten(-2).topk(self.top_k, -1).indices


def _groups_ignored(self: GroupedRouter, biased: Tensor) -> Tensor:
    return biased.topk(self.top_k, -1).indices


def _bias_ignored(router: GroupedRouter) -> None:
    router.bias = torch.zeros_like(router.bias)


def _routing(score: Any = torch.sigmoid, weigh_biased: bool = False, eps: float = 1e-20, over_all: bool = False) -> Any:
    def forward(self: GroupedRouter, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.logits(x @ self.weight.T)
        scores = score(logits)
        biased = self.biased(scores + self.bias)
        choice = self.choose(biased)
        weight = (biased if weigh_biased else scores).gather(-1, choice)
        if self.normalised:
            weight = weight / ((scores if over_all else weight).sum(-1, keepdim=True) + eps)
        return weight * self.scaling, choice

    return forward_of(GroupedRouter, forward)


RENORMALISED = ("base", "yarn", "no-q-lora", "half-rope", "shared-2", "biased", "negative-bias")

ROUTER = (
    Deviation(name="correction bias ignored", site="ffn.router.choice", apply=each(GroupedRouter, _bias_ignored)),
    Deviation(
        name="correction bias added to the weights", site="ffn.router.weights", apply=_routing(weigh_biased=True)
    ),
    Deviation(
        name="groups masked with 0 instead of -inf",
        site="ffn.router.choice",
        apply=_choosing(_masked_with_zero),
        variants=("negative-bias",),
    ),
    Deviation(
        name="a group scored by its best expert alone",
        site="ffn.router.choice",
        apply=_choosing(_best_expert_scores_the_group),
    ),
    Deviation(name="groups ignored", site="ffn.router.choice", apply=_choosing(_groups_ignored)),
    Deviation(
        name="softmax for sigmoid", site="ffn.router.choice", apply=_routing(score=lambda logits: logits.softmax(-1))
    ),
    Deviation(
        name="renormalisation left out",
        site="ffn.router.weights",
        apply=each(GroupedRouter, constant("normalised", False)),
        variants=RENORMALISED,
    ),
    Deviation(
        name="renormalisation although the config says none",
        site="ffn.router.weights",
        apply=each(GroupedRouter, constant("normalised", True)),
        variants=("no-renorm",),
    ),
    Deviation(
        name="renormalisation adds 1e-3 to the sum",
        site="ffn.router.weights",
        apply=_routing(eps=1e-3),
        variants=RENORMALISED,
    ),
    Deviation(
        name="weights normalised over all experts",
        site="ffn.router.weights",
        apply=_routing(over_all=True),
        variants=RENORMALISED,
    ),
    Deviation(
        name="routed scaling factor lost", site="ffn.router.weights", apply=each(GroupedRouter, constant("scaling", 1.0))
    ),
)

# --- the experts ---


def _experts_swapped(module: Experts) -> None:
    gate, up = module.gate_up_proj.detach().chunk(2, 1)
    module.gate_up_proj = nn.Parameter(torch.cat([up, gate], 1), requires_grad=False)


def _experts_lexical(module: Experts) -> None:
    order = sorted(range(len(module.down_proj)), key=str)
    for name in ("gate_up_proj", "down_proj"):
        setattr(module, name, nn.Parameter(getattr(module, name).detach()[order], requires_grad=False))


def _weighed_before(module: Experts) -> None:
    def forward(self: Experts, x: Tensor, weight: Tensor, choice: Tensor) -> Tensor:
        one = torch.ones_like(weight[:, :1])
        parts = [Experts.forward(self, x * weight[:, i : i + 1], one, choice[:, i : i + 1]) for i in range(choice.shape[1])]
        return torch.stack(parts).sum(0)

    module.forward = MethodType(forward, module)


def _shared_lost(module: DeepSeekMoE) -> None:
    module.forward = lambda x: module.experts(x.flatten(0, 1), *module.router(x.flatten(0, 1))).view_as(x)


def _one_dense_layer_more(model: Any) -> None:
    first = next((layer.ffn for layer in model.layers if isinstance(layer.ffn, DeepSeekMoE)), None)
    if first is not None:
        first.forward = first.shared.forward


EXPERTS = (
    Deviation(name="gate and up swapped in the experts", site="ffn.experts", apply=each(Experts, _experts_swapped)),
    Deviation(name="experts in lexical order", site="ffn.experts", apply=each(Experts, _experts_lexical)),
    Deviation(name="an expert's input weighed, not its output", site="ffn.experts", apply=each(Experts, _weighed_before)),
    Deviation(name="shared experts lost", site="ffn", apply=each(DeepSeekMoE, _shared_lost)),
    Deviation(
        name="one dense layer more, of the shared experts alone", site="ffn", apply=each(Decoder, _one_dense_layer_more)
    ),
)
