"""What is done to the scores of the next token before one is chosen: penalties, bans, and the tails that sampling cuts off.

Scores are logits, or the logarithms of probabilities where beams are searched. What is banned scores minus infinity.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Scores: TypeAlias = Float[Tensor, "b v"]
Ids: TypeAlias = Int[Tensor, "b t"]

BANNED = -math.inf

# --- what was read before ---


def occurring(ids: Ids, real: Bool[Tensor, "b t"], vocab_size: int) -> Bool[Tensor, "b v"]:
    """Which tokens of the vocabulary a row holds; padding is none of them."""
    counts = torch.zeros(len(ids), vocab_size, dtype=torch.long, device=ids.device)
    return counts.scatter_add(1, ids, real.long()) > 0


def repetition_penalty(scores: Scores, occurs: Bool[Tensor, "b v"], penalty: float) -> Scores:
    """Tokens that occur already become less likely by a factor above 1. Keskar et al. 2019 (CTRL), 4.1, which divides; a
    negative score has to be multiplied to fall.
    """
    return torch.where(occurs, torch.where(scores > 0, scores / penalty, scores * penalty), scores)


def no_repeated_ngrams(
    scores: Scores, ids: Ids, real: Bool[Tensor, "b t"], of: Int[Tensor, "b u"], of_real: Bool[Tensor, "b u"], size: int
) -> Scores:
    """No token that would end a run of `size` tokens which stands in `of` already: in the text itself (Paulus et al. 2018,
    2.5), or in its source. Padding is part of no run.
    """
    start = ids.shape[1] - (size - 1)
    if start < 0 or of.shape[1] < size:
        return scores
    runs, whole = of.unfold(1, size, 1), of_real.unfold(1, size, 1).all(-1)  # as (b, w, n), (b, w)
    begun = (runs[..., :-1] == ids[:, None, start:]).all(-1) & real[:, start:].all(-1, keepdim=True)
    row, run = (begun & whole).nonzero(as_tuple=True)
    scores = scores.clone()
    scores[row, runs[row, run, -1]] = BANNED
    return scores


# --- words and tokens ---


def biased_sequence(
    scores: Scores, ids: Ids, real: Bool[Tensor, "b t"], sequence: Sequence[int], bias: float
) -> Scores:
    """`bias` on the last token of a sequence, wherever the others stand just before it. One of minus infinity bans it."""
    *begin, last = sequence
    start = ids.shape[1] - len(begin)
    if start < 0:
        return scores
    wanted = torch.tensor(begin, dtype=ids.dtype, device=ids.device)
    stands = ((ids[:, start:] == wanted) & real[:, start:]).all(-1)  # as (b,)
    scores = scores.clone()
    scores[stands, last] += bias
    return scores


def without(scores: Scores, tokens: Sequence[int]) -> Scores:
    """None of these tokens."""
    banned = torch.tensor(tokens, dtype=torch.long, device=scores.device)
    return scores.index_fill(1, banned, BANNED)


def forced(scores: Scores, tokens: Sequence[int]) -> Scores:
    """One of these tokens and no other, each with the score 0, the logarithm of certainty."""
    chosen = torch.tensor(tokens, dtype=torch.long, device=scores.device)
    return torch.full_like(scores, BANNED).index_fill(1, chosen, 0.0)


def ending_sooner(scores: Scores, eos: Sequence[int], factor: float, beyond: int) -> Scores:
    """The ends of the text gain |score| * (factor^beyond - 1), `beyond` tokens after the place where that begins."""
    if beyond <= 0:
        return scores
    scores = scores.clone()
    scores[:, list(eos)] += scores[:, list(eos)].abs() * (factor**beyond - 1)
    return scores


def finite(scores: Scores) -> Scores:
    """Nought for what is no number, and the largest of the dtype for infinity, with its sign."""
    return scores.nan_to_num(nan=0.0)


# --- tails: of what is left one token is drawn ---


def _without_tail(scores: Scores, tail: Bool[Tensor, "b v"]) -> Scores:
    """The likeliest token stays whatever happens."""
    best = torch.zeros_like(tail).scatter(1, scores.argmax(-1, keepdim=True), True)
    return scores.masked_fill(tail & ~best, BANNED)


def top_k(scores: Scores, k: int) -> Scores:
    """The k likeliest tokens. Fan et al. 2018, 5.2."""
    least = scores.topk(min(k, scores.shape[-1])).values[:, -1:]  # as (b, 1)
    return scores.masked_fill(scores < least, BANNED)


def _fewest(order: Int[Tensor, "b v"], p: Float[Tensor, "b v"], mass: float) -> Bool[Tensor, "b v"]:
    """The fewest tokens, taken in this order, that have a mass together."""
    before = p.gather(1, order).cumsum(-1).roll(1, -1)
    before[:, 0] = 0.0
    return torch.zeros_like(p, dtype=torch.bool).scatter(1, order, before < mass)


def top_p(scores: Scores, mass: float) -> Scores:
    """The nucleus: the fewest tokens, the likeliest first, that have this mass. Holtzman et al. 2020, 3.1."""
    kept = _fewest(scores.argsort(-1, descending=True), scores.softmax(-1), mass)
    return _without_tail(scores, ~kept)


def min_p(scores: Scores, share: float) -> Scores:
    """Tokens with this share of the likeliest one's probability. Nguyen et al. 2024, 3."""
    p = scores.softmax(-1)
    return _without_tail(scores, p < share * p.amax(-1, keepdim=True))


def _entropy(scores: Scores) -> Float[Tensor, "b 1"]:
    log_p = scores.log_softmax(-1)
    return -(log_p.exp() * log_p).nan_to_num(nan=0.0).sum(-1, keepdim=True)  # what is banned adds nothing


def typical_p(scores: Scores, mass: float) -> Scores:
    """The fewest tokens that have this mass, first those whose information is nearest to what is expected, the entropy.
    Meister et al. 2023, 3.
    """
    surprise = (-scores.log_softmax(-1) - _entropy(scores)).abs()
    kept = _fewest(surprise.argsort(-1), scores.softmax(-1), mass)
    return scores.masked_fill(~kept, BANNED)


def epsilon_cutoff(scores: Scores, epsilon: float) -> Scores:
    """Tokens of probability epsilon at least. Hewitt et al. 2022, 4.2."""
    return _without_tail(scores, scores.softmax(-1) < epsilon)


def eta_cutoff(scores: Scores, epsilon: float) -> Scores:
    """Tokens of probability min(epsilon, sqrt(epsilon) * exp(-entropy)) at least. Hewitt et al. 2022, 4.3."""
    eta = (math.sqrt(epsilon) * torch.exp(-_entropy(scores))).clamp(max=epsilon)
    return _without_tail(scores, scores.softmax(-1) < eta)
