"""Mixtures of experts: a router that chooses, and the experts that it chooses among."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from reference_impl.ffn import ACTIVATIONS, GatedFFN
from reference_impl.precision import HALF, widen
from reference_impl.site import Site


class Router(nn.Module):
    """What routers have in common: one row of `weight` an expert, and a choice of the `top_k` best.

    Sites: `logits`, and `biased`, the scores that decide. `forced` (n, k) replaces the choice and nothing else, for
    comparing values where rounding may flip a choice.
    """

    def __init__(self, *, d_model: int, n_experts: int, top_k: int):
        super().__init__()
        self.top_k = top_k
        self.weight = nn.Parameter(torch.empty(n_experts, d_model))
        self.logits, self.biased = Site(), Site()
        self.forced: Int[Tensor, "n k"] | None = None

    def choose(self, biased: Float[Tensor, "n x"]) -> Int[Tensor, "n k"]:
        """The experts of each token by the scores that decide."""
        return biased.topk(self.top_k, -1).indices


class SoftmaxRouter(Router):
    """Mixtral's router: p = Softmax(logits); w, idx = TopK(p); w = w / Sum(w), which Qwen leaves to the config.

    Renormalised, that is the softmax of the chosen logits alone. `rounded`: the weights come in the precision of the model,
    as Qwen has them; Mixtral keeps them in float32. R1, "MoE"; Shazeer et al. 2017; Jiang et al. 2024.
    """

    def __init__(self, *, d_model: int, n_experts: int, top_k: int, normalised: bool, rounded: bool):
        super().__init__(d_model=d_model, n_experts=n_experts, top_k=top_k)
        self.normalised, self.rounded = normalised, rounded

    def forward(self, x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"]]:
        """Weights and experts of each token."""
        logits = self.logits(F.linear(x, self.weight))  # as (n, x); in the precision of the model
        p = self.biased(widen(logits).softmax(-1))  # as (n, x); exponentials and their sum need float32
        choice = self.choose(p) if self.forced is None else self.forced
        weight = p.gather(-1, choice)  # as (n, k)
        if self.normalised:
            weight = weight / weight.sum(-1, keepdim=True)
        return weight.to(x.dtype) if self.rounded else weight, choice


class GroupLimitedRouter(Router):
    """DeepSeek-V2's router: softmax scores, and a choice limited to the groups that have the best experts.

    A group's score is that of its best expert; with one group it is the plain TopK. DeepSeek-AI 2024 (V2), 2.2.
    """

    wide = dict.fromkeys(HALF, ("weight",))

    def __init__(
        self, *, d_model: int, n_experts: int, top_k: int, n_groups: int, top_groups: int, normalised: bool, scaling: float
    ):
        super().__init__(d_model=d_model, n_experts=n_experts, top_k=top_k)
        self.n_groups, self.top_groups = n_groups, top_groups
        self.normalised, self.scaling = normalised, scaling

    def choose(self, biased: Float[Tensor, "n x"]) -> Int[Tensor, "n k"]:
        """The experts of each token, in no particular order."""
        by_group = biased.unflatten(-1, (self.n_groups, -1))  # as (n, groups, x / groups)
        group = by_group.amax(-1).topk(self.top_groups, -1, sorted=False).indices  # as (n, top_groups)
        return limited_choice(by_group, group, self.top_k)

    def forward(self, x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"]]:
        """Weights and experts of each token."""
        logits = self.logits(F.linear(widen(x), widen(self.weight)))  # a flipped choice costs more than float32 does
        p = self.biased(logits.softmax(-1))  # as (n, x)
        choice = self.choose(p) if self.forced is None else self.forced
        weight = p.gather(-1, choice)  # as (n, k)
        if self.normalised:
            weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
        return weight * self.scaling, choice


class GroupedRouter(Router):
    """DeepSeek-V3's router: sigmoid scores, a bias that chooses but does not weigh, and a choice limited to groups.

    A group's score is the sum of its two best biased scores; the best `top_groups` groups stay, and the best `top_k`
    experts among them are chosen. R1, "DeepSeekMoE"; DeepSeek-AI 2024, 2.1.2.
    """

    wide = dict.fromkeys(HALF, ("weight", "bias"))

    def __init__(
        self, *, d_model: int, n_experts: int, top_k: int, n_groups: int, top_groups: int, normalised: bool, scaling: float
    ):
        super().__init__(d_model=d_model, n_experts=n_experts, top_k=top_k)
        self.n_groups, self.top_groups = n_groups, top_groups
        self.normalised, self.scaling = normalised, scaling
        self.register_buffer("bias", torch.empty(n_experts))  # moved by load, not by a gradient
        self.bias: Tensor

    def choose(self, biased: Float[Tensor, "n x"]) -> Int[Tensor, "n k"]:
        """The experts of each token, in no particular order."""
        by_group = biased.unflatten(-1, (self.n_groups, -1))  # as (n, groups, x / groups)
        group_score = by_group.topk(2, -1).values.sum(-1)  # as (n, groups)
        group = group_score.topk(self.top_groups, -1, sorted=False).indices  # as (n, top_groups)
        return limited_choice(by_group, group, self.top_k)

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


def limited_choice(
    by_group: Float[Tensor, "n groups members"], group: Int[Tensor, "n chosen"], top_k: int
) -> Int[Tensor, "n k"]:
    """TopK(MaskGroup(scores, group)): the best experts among those of the chosen groups."""
    allowed = torch.zeros(by_group.shape[:-1], dtype=torch.bool, device=group.device).scatter(-1, group, True)
    eligible = by_group.masked_fill(~allowed[..., None], -torch.inf)  # below any score, which may be negative
    return eligible.flatten(-2).topk(top_k, -1, sorted=False).indices


class Experts(nn.Module):
    """One GatedFFN an expert, their matrices stacked: gate and up in one of (x, 2f, d), down in one of (x, d, f). R1,
    "MoE".
    """

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


class MoE(nn.Module):
    """y = Sum(w[i] * GatedFFN[idx[i]](x)). Each token chooses for itself.

    jitter: in training, the input is multiplied with noise that is uniform in [1 - jitter, 1 + jitter).
    R1, "MoE"; Fedus et al. 2021 for the jitter.
    """

    def __init__(self, *, router: Router, experts: Experts, jitter: float = 0.0):
        super().__init__()
        self.router, self.experts, self.jitter = router, experts, jitter

    def forward(self, x: Float[Tensor, "b s d"]) -> Float[Tensor, "b s d"]:
        if self.training and self.jitter > 0:
            x = x * torch.empty_like(x).uniform_(1 - self.jitter, 1 + self.jitter)
        tokens = x.flatten(0, 1)  # as (n, d)
        weight, choice = self.router(tokens)
        return self.experts(tokens, weight, choice).view_as(x)


class DeepSeekMoE(nn.Module):
    """y = GatedFFN_shared(x) + Sum(w[i] * GatedFFN[idx[i]](x)). Several shared experts are one that is as wide as all.

    R1, "DeepSeekMoE".
    """

    def __init__(self, *, router: Router, experts: Experts, shared: GatedFFN):
        super().__init__()
        self.router, self.experts, self.shared = router, experts, shared

    def forward(self, x: Float[Tensor, "b s d"]) -> Float[Tensor, "b s d"]:
        tokens = x.flatten(0, 1)  # as (n, d)
        weight, choice = self.router(tokens)
        routed = self.experts(tokens, weight, choice).view_as(x)
        return routed + self.shared(x)


class GatedSharedMoE(nn.Module):
    """y = Sum(w[i] * GatedFFN[idx[i]](x)) + Sigmoid(LinearSharedGate(x)) * GatedFFN_shared(x), as Qwen1.5-MoE has it."""

    def __init__(self, *, d_model: int, router: Router, experts: Experts, shared: GatedFFN):
        super().__init__()
        self.router, self.experts, self.shared = router, experts, shared
        self.shared_gate = nn.Linear(d_model, 1, bias=False)

    def forward(self, x: Float[Tensor, "b s d"]) -> Float[Tensor, "b s d"]:
        tokens = x.flatten(0, 1)  # as (n, d)
        weight, choice = self.router(tokens)
        shared = self.shared_gate(tokens).sigmoid() * self.shared(tokens)  # as (n, d)
        return (self.experts(tokens, weight, choice) + shared).view_as(x)
