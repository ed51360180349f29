"""Mixtures of experts: a router that chooses, and the experts that it chooses among."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from reference_impl.ffn import ACTIVATIONS, GatedFFN
from reference_impl.precision import widen
from reference_impl.site import Site


class GroupedRouter(nn.Module):
    """DeepSeek-V3's router: sigmoid scores, a bias that chooses but does not weigh, and a choice limited to groups.

    A group's score is the sum of its two best biased scores; the best `top_groups` groups stay, and the best `top_k`
    experts among them are chosen. Seed 1, "DeepSeekMoE"; DeepSeek-AI 2024, 2.1.2.

    `forced` (n, k) replaces the choice and nothing else, for comparing values where rounding may flip a choice.
    """

    def __init__(
        self, *, d_model: int, n_experts: int, top_k: int, n_groups: int, top_groups: int, normalised: bool, scaling: float
    ):
        super().__init__()
        self.top_k, self.n_groups, self.top_groups = top_k, n_groups, top_groups
        self.normalised, self.scaling = normalised, scaling
        self.weight = nn.Parameter(torch.empty(n_experts, d_model))
        self.register_buffer("bias", torch.empty(n_experts))  # moved by load, not by a gradient
        self.bias: Tensor
        self.logits, self.biased = Site(), Site()
        self.forced: Int[Tensor, "n k"] | None = None

    def choose(self, biased: Float[Tensor, "n x"]) -> Int[Tensor, "n k"]:
        """The experts of each token, in no particular order."""
        by_group = biased.unflatten(-1, (self.n_groups, -1))  # as (n, groups, x / groups)
        group_score = by_group.topk(2, -1).values.sum(-1)  # as (n, groups)
        group = group_score.topk(self.top_groups, -1, sorted=False).indices  # as (n, top_groups)
        allowed = torch.zeros_like(group_score, dtype=torch.bool).scatter(-1, group, True)
        eligible = by_group.masked_fill(~allowed[..., None], -torch.inf)  # below any score, which may be negative
        return eligible.flatten(-2).topk(self.top_k, -1, sorted=False).indices

    def forward(self, x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"]]:
        """Weights and experts of each token."""
        logits = self.logits(F.linear(widen(x), widen(self.weight)))  # a flipped choice costs more than float32 does
        score = logits.sigmoid()  # as (n, x)
        biased = self.biased(score + widen(self.bias))
        choice = self.choose(biased) if self.forced is None else self.forced
        weight = score.gather(-1, choice)  # as (n, k)
        if self.normalised:
            weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
        return weight * self.scaling, choice


class Experts(nn.Module):
    """One GatedFFN an expert, their matrices stacked: gate and up in one of (x, 2f, d), down in one of (x, d, f)."""

    def __init__(self, *, d_model: int, d_ff: int, n_experts: int, activation: str):
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.gate_up_proj = nn.Parameter(torch.empty(n_experts, 2 * d_ff, d_model))
        self.down_proj = nn.Parameter(torch.empty(n_experts, d_model, d_ff))

    def forward(
        self, x: Float[Tensor, "n d"], weight: Float[Tensor, "n k"], choice: Int[Tensor, "n k"]
    ) -> Float[Tensor, "n d"]:
        """Sum(w[i] * GatedFFN[choice[i]](x)), expert by expert in their order, which fixes how the sum rounds."""
        y = torch.zeros_like(x)
        for expert in choice.unique().tolist():
            place, token = torch.where((choice == expert).T)  # the order of rows, too, is one of rounding
            gate, up = F.linear(x[token], self.gate_up_proj[expert]).chunk(2, -1)  # as (tokens of this expert, f) each
            out = F.linear(self.activation(gate) * up, self.down_proj[expert]) * weight[token, place, None]
            y.index_add_(0, token, out.to(x.dtype))  # weighed in float32 or better, added up in the model's precision
        return y


class DeepSeekMoE(nn.Module):
    """y = GatedFFN_shared(x) + Sum(w[i] * GatedFFN[idx[i]](x)). Several shared experts are one that is as wide as all."""

    def __init__(self, *, router: GroupedRouter, experts: Experts, shared: GatedFFN):
        super().__init__()
        self.router, self.experts, self.shared = router, experts, shared

    def forward(self, x: Float[Tensor, "b s d"]) -> Float[Tensor, "b s d"]:
        tokens = x.flatten(0, 1)  # as (n, d)
        weight, choice = self.router(tokens)
        routed = self.experts(tokens, weight, choice).view_as(x)
        return routed + self.shared(x)
