"""Departures of mixtures of experts: routers, experts, and what is shared beside them."""

from __future__ import annotations

from dataclasses import replace
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity_tests.families.deviations import constant, each, forward_of
from parity_tests.harness.record import FOUND_HERE, Deviation, Known
from reference_impl.decoder import Decoder
from reference_impl.moe import (
    DeepSeekMoE,
    Experts,
    GatedSharedMoE,
    GroupedRouter,
    GroupLimitedRouter,
    Router,
    SoftmaxRouter,
)

KNOWN = (
    Known(
        name="routers return probabilities as their logits, and the load-balancing loss takes the softmax of them again",
        sites=("ffn.router.logits",),
        since="5.0.0",
        until="5.6.0",
        link="https://github.com/huggingface/transformers/issues/45120",
        explained="a router's logits are probabilities",
    ),
    Known(
        name="the load-balancing loss takes the mask of the cache for that of the new tokens",
        smallest="six tokens cached, one new, `output_router_logits=True`, `attention_mask=torch.ones(1, 7)`",
        sites=("load-balancing.cached",),
        link=FOUND_HERE,
        raises="RuntimeError",
    ),
    Known(
        name="the load-balancing loss takes the mask of the cache for that of the new tokens, and is no number",
        sites=("load-balancing.cached",),
        until="5.0.0",
        link=FOUND_HERE,
        unexplained="a mask laid over other tokens than its own has no meaning that the reference could have",
    ),
)

FLOAT32_WEIGHTS = Known(
    name="the weights of experts are not rounded to the model's precision",
    sites=("ffn.router.weights",),
    since="5.0.0",
    until="5.6.0",
    precisions=("bf16", "f16"),
    link="measured: float32 in 5.0 to 5.4, bfloat16 in 4.57.6 and from 5.6.2 on",
    unexplained="it is one of rounding, which no deviation in float64 shows",
)
"""Of Qwen's mixtures."""

# --- routers ---


CHOICE, WEIGHTS = "ffn.router.choice", "ffn.router.weights"


def _choosing(kind: type[Router], choose: Any) -> Any:
    return each(kind, lambda router: setattr(router, "choose", MethodType(choose, router)))


def normalisation(renormalised: tuple[str, ...], bare: tuple[str, ...]) -> tuple[Deviation, ...]:
    """Of routers that leave it to the config: in which variants weights are renormalised, and in which not."""
    return (
        Deviation(
            name="renormalisation left out",
            site=WEIGHTS,
            apply=each(Router, constant("normalised", False)),
            variants=renormalised,
        ),
        Deviation(
            name="renormalisation although the config says none",
            site=WEIGHTS,
            apply=each(Router, constant("normalised", True)),
            variants=bare,
        ),
    )


SCALING = Deviation(name="routed scaling factor lost", site=WEIGHTS, apply=each(Router, constant("scaling", 1.0)))


def _masked_with_zero(self: Any, biased: Tensor) -> Tensor:
    return _grouped(self, biased, best=2, rest=0.0)


def _best_expert_scores_the_group(self: Any, biased: Tensor) -> Tensor:
    return _grouped(self, biased, best=1, rest=-torch.inf)


def _grouped(self: Any, biased: Tensor, best: int, rest: float) -> Tensor:
    by_group = biased.unflatten(-1, (self.n_groups, -1))
    group = by_group.topk(best, -1).values.sum(-1).topk(self.top_groups, -1).indices
    allowed = torch.zeros(by_group.shape[:-1], dtype=torch.bool).scatter(-1, group, True)
    return by_group.masked_fill(~allowed[..., None], rest).flatten(-2).topk(self.top_k, -1).indices


def _groups_ignored(self: Any, biased: Tensor) -> Tensor:
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


def grouped_router(*, renormalised: tuple[str, ...], bare: tuple[str, ...], negative: tuple[str, ...]) -> tuple[Deviation, ...]:
    """Of DeepSeek-V3. In which variants weights are renormalised or not, and scores are negative."""
    return (
        Deviation(name="correction bias ignored", site=CHOICE, apply=each(GroupedRouter, _bias_ignored)),
        Deviation(name="correction bias added to the weights", site=WEIGHTS, apply=_routing(weigh_biased=True)),
        Deviation(
            name="groups masked with 0 instead of -inf",
            site=CHOICE,
            apply=_choosing(GroupedRouter, _masked_with_zero),
            variants=negative,
        ),
        Deviation(
            name="a group scored by its best expert alone",
            site=CHOICE,
            apply=_choosing(GroupedRouter, _best_expert_scores_the_group),
        ),
        Deviation(name="groups ignored", site=CHOICE, apply=_choosing(GroupedRouter, _groups_ignored)),
        Deviation(name="softmax for sigmoid", site=CHOICE, apply=_routing(score=lambda logits: logits.softmax(-1))),
        *normalisation(renormalised, bare),
        Deviation(
            name="renormalisation adds 1e-3 to the sum", site=WEIGHTS, apply=_routing(eps=1e-3), variants=renormalised
        ),
        Deviation(
            name="weights normalised over all experts", site=WEIGHTS, apply=_routing(over_all=True), variants=renormalised
        ),
        SCALING,
    )


def _probabilities(change: Any) -> Any:
    """The same router with p of (n, x) logits computed otherwise."""

    def forward(self: SoftmaxRouter, x: Tensor) -> tuple[Tensor, Tensor]:
        p = self.biased(change(self.logits(x @ self.weight.T)))
        choice = self.choose(p)
        weight = p.gather(-1, choice)
        return (weight / weight.sum(-1, keepdim=True) if self.normalised else weight), choice

    return forward_of(SoftmaxRouter, forward)


def _shown_as_probabilities(self: SoftmaxRouter, x: Tensor) -> tuple[Tensor, Tensor]:
    p = self.biased(F.linear(x, self.weight).softmax(-1))
    self.logits(p)
    choice = self.choose(p)
    weight = p.gather(-1, choice)
    return (weight / weight.sum(-1, keepdim=True) if self.normalised else weight), choice


def _one_more(router: SoftmaxRouter) -> None:
    router.top_k += 1


def softmax_router(
    *, several: tuple[str, ...], some: tuple[str, ...], bare: tuple[str, ...] = ()
) -> tuple[Deviation, ...]:
    """Of Mixtral and Qwen. In which variants more than one expert is chosen and weights renormalised; in which not all
    experts are chosen, and weights renormalised; in which they are not renormalised.
    """
    return (
        Deviation(
            name="sigmoid for softmax", site=WEIGHTS, apply=_probabilities(lambda logits: logits.sigmoid()), variants=several
        ),
        Deviation(
            name="softmax over tokens instead of experts",
            site=CHOICE,
            apply=_probabilities(lambda logits: logits.softmax(0)),
            variants=some,
        ),
        Deviation(
            name="softmax of the softmax",
            site=WEIGHTS,
            apply=_probabilities(lambda logits: logits.softmax(-1).softmax(-1)),
            variants=several,
        ),
        Deviation(
            name="a router's logits are probabilities",
            site="ffn.router.logits",
            apply=forward_of(SoftmaxRouter, _shown_as_probabilities),
        ),
        Deviation(name="one expert more is chosen", site=CHOICE, apply=each(SoftmaxRouter, _one_more), variants=some),
        *normalisation(some, bare),
    )


def _scored(score: Any) -> Any:
    def forward(self: GroupLimitedRouter, x: Tensor) -> tuple[Tensor, Tensor]:
        p = self.biased(score(self.logits(x @ self.weight.T)))
        choice = self.choose(p)
        return p.gather(-1, choice) * self.scaling, choice

    return forward_of(GroupLimitedRouter, forward)


def _two_experts_score_the_group(self: Any, biased: Tensor) -> Tensor:
    return _grouped(self, biased, best=2, rest=-torch.inf)


def group_limited_router(*, limited: tuple[str, ...], scaled: tuple[str, ...]) -> tuple[Deviation, ...]:
    """Of DeepSeek-V2. In which variants groups limit the choice and weights are not renormalised, and a factor scales them."""
    return (
        Deviation(
            name="groups ignored", site=CHOICE, apply=_choosing(GroupLimitedRouter, _groups_ignored), variants=limited
        ),
        Deviation(
            name="a group scored by its two best experts, as in V3",
            site=CHOICE,
            apply=_choosing(GroupLimitedRouter, _two_experts_score_the_group),
            variants=limited,
        ),
        Deviation(name="sigmoid for softmax", site=WEIGHTS, apply=_scored(torch.sigmoid), variants=limited),
        Deviation(
            name="renormalisation although the config says none",
            site=WEIGHTS,
            apply=each(Router, constant("normalised", True)),
            variants=limited,
        ),
        replace(SCALING, variants=scaled),
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


def _unweighed(self: Experts, x: Tensor, weight: Tensor, choice: Tensor) -> Tensor:
    return Experts.forward(self, x, torch.ones_like(weight), choice)


def experts(
    *, many: tuple[str, ...] = ("*",), weighed: tuple[str, ...] = ("*",), silu: tuple[str, ...] = ("*",)
) -> tuple[Deviation, ...]:
    """In which variants there are more than ten, their weights are not all 1, and their activation is SiLU."""
    lexical, before = each(Experts, _experts_lexical), each(Experts, _weighed_before)
    return (
        Deviation(name="gate and up swapped in the experts", site="ffn.experts", apply=each(Experts, _experts_swapped)),
        Deviation(name="experts in lexical order", site="ffn.experts", apply=lexical, variants=many),
        Deviation(name="an expert's input weighed, not its output", site="ffn.experts", apply=before, variants=weighed),
        Deviation(
            name="experts are added up unweighed",
            site="ffn.experts",
            apply=forward_of(Experts, _unweighed),
            variants=weighed,
        ),
        Deviation(
            name="gelu for silu in the experts",
            site="ffn.experts",
            apply=each(Experts, constant("activation", F.gelu)),
            variants=silu,
        ),
    )


SHARED_EXPERTS = (
    Deviation(name="shared experts lost", site="ffn", apply=each(DeepSeekMoE, _shared_lost)),
    Deviation(
        name="one dense layer more, of the shared experts alone", site="ffn", apply=each(Decoder, _one_dense_layer_more)
    ),
)


def _gated_by(gate: Any) -> Any:
    def forward(self: GatedSharedMoE, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        routed = self.experts(tokens, *self.router(tokens))
        return (routed + gate(self.shared_gate(tokens)) * self.shared(tokens)).view_as(x)

    return forward_of(GatedSharedMoE, forward)


GATED_SHARED_EXPERT = (
    Deviation(name="the shared expert lost", site="ffn", apply=_gated_by(torch.zeros_like)),
    Deviation(name="the shared expert without its gate", site="ffn", apply=_gated_by(torch.ones_like)),
    Deviation(name="the shared expert's gate without sigmoid", site="ffn", apply=_gated_by(lambda gate: gate)),
)
