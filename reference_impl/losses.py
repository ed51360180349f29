"""What training minimises: the losses of language models and of heads, and the one that keeps experts evenly loaded."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from reference_impl.precision import widen

IGNORED = -100
"""The label of a token that is not to be learned."""


def language_model_loss(logits: Float[Tensor, "b s v"], labels: Int[Tensor, "b s"]) -> Float[Tensor, ""]:
    """-Mean(log p(label)), where the logits of each token predict the label of the next; those that are IGNORED do not count.

    Errors: none; without any label that counts it is NaN, a mean of nothing.
    """
    predicted, wanted = widen(logits[:, :-1]).flatten(0, 1), labels[:, 1:].flatten()  # as (n, v) and (n,)
    return F.cross_entropy(predicted, wanted, ignore_index=IGNORED)


def class_loss(logits: Float[Tensor, "*b k"], labels: Int[Tensor, "*b"]) -> Float[Tensor, ""]:
    """-Mean(log p(label)), of sequences or tokens; those that are IGNORED do not count."""
    return F.cross_entropy(widen(logits).flatten(0, -2), labels.flatten(), ignore_index=IGNORED)


def regression_loss(values: Float[Tensor, "*b"], wanted: Float[Tensor, "*b"]) -> Float[Tensor, ""]:
    """Mean((value - wanted)^2)."""
    return (values - wanted).square().mean()


def label_set_loss(logits: Float[Tensor, "*b k"], present: Float[Tensor, "*b k"]) -> Float[Tensor, ""]:
    """Of labels that each are there (1) or not (0), by themselves: -Mean(present * log p + (1 - present) * log(1 - p))."""
    return -(present * F.logsigmoid(logits) + (1 - present) * F.logsigmoid(-logits)).mean()


def answer_loss(
    starts: Float[Tensor, "b s"], ends: Float[Tensor, "b s"], start: Int[Tensor, " b"], end: Int[Tensor, " b"]
) -> Float[Tensor, ""]:
    """The mean of two losses over slots, one for where answers start and one for where they end. A slot beyond the
    sequence, as an answer in the rest of a long text has, does not count. Devlin et al. 2018, 4.2.
    """
    sides = ((starts, start), (ends, end))
    first, last = (class_loss(x, slot.masked_fill(slot >= x.shape[-1], IGNORED)) for x, slot in sides)
    return (first + last) / 2


def load_balancing_loss(
    router_logits: Sequence[Float[Tensor, "n x"]], top_k: int, real: Bool[Tensor, "b s"] | None = None
) -> Float[Tensor, ""]:
    """n_experts * Sum(f[i] * P[i]): f[i] how often expert i is among a token's choices, P[i] its mean probability.

    Least, namely top_k, where all experts are chosen alike. The gradient goes through P alone. The layers are pooled, as if
    the tokens of all were one batch. real: padding does not count; n runs over b and s.
    R1, "MoE"; Fedus et al. 2021, (4) to (6), with top_k choices a token.
    """
    logits = torch.cat(list(router_logits))  # as (layers * n, x)
    if real is not None:
        logits = logits[real.flatten().repeat(len(router_logits))]
    p = widen(logits).softmax(-1)  # as (n, x)
    chosen = torch.zeros_like(p).scatter(-1, p.topk(top_k, -1).indices, 1.0)  # as (n, x); 1 for a token's experts
    f, mean_p = chosen.mean(0), p.mean(0)  # as (x,)
    return p.shape[-1] * (f * mean_p).sum()
