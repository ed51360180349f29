"""Each processor of scores against what its paper says, token by token in plain Python; beams against all texts there are."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from reference_impl import logits_processors as do
from reference_impl.beam_search import beam_search
from reference_impl.generation import generate
from reference_impl.generation_settings import Settings

V = 11
SCORES = (torch.arange(3 * V, dtype=torch.float64).view(3, V) * 2.3).sin() * 3
IDS = torch.tensor([[9, 1, 4, 1, 4, 1], [9, 9, 9, 5, 3, 5], [2, 7, 2, 8, 2, 7]])
REAL = torch.tensor([[True] * 6, [False] * 3 + [True] * 3, [True] * 6])

Row = list[float]


def chances(row: Row) -> Row:
    total = sum(math.exp(x) for x in row)
    return [math.exp(x) / total for x in row]


def entropy(row: Row) -> float:
    return -sum(p * math.log(p) for p in chances(row) if p > 0)


def first_with_mass(order: list[int], p: Row, mass: float) -> set[int]:
    kept, total = set[int](), 0.0
    for token in order:
        if total >= mass:
            break
        kept.add(token)
        total += p[token]
    return kept


def nucleus(row: Row, mass: float) -> set[int]:
    p = chances(row)
    return first_with_mass(sorted(range(V), key=lambda t: -p[t]), p, mass)


def typical(row: Row, mass: float) -> set[int]:
    p, h = chances(row), entropy(row)
    return first_with_mass(sorted(range(V), key=lambda t: abs(-math.log(p[t]) - h)), p, mass)


def above(row: Row, least: float) -> set[int]:
    p = chances(row)
    return {t for t in range(V) if p[t] >= least} | {max(range(V), key=lambda t: p[t])}


TAILS: dict[str, tuple[Callable[..., Tensor], float, Callable[..., set[int]]]] = {
    "top_k": (do.top_k, 4, lambda row, k: set(sorted(range(V), key=lambda t: -row[t])[:k])),
    "top_k, more than there are": (do.top_k, 40, lambda row, k: set(range(V))),
    "top_p": (do.top_p, 0.7, nucleus),
    "top_p, one token": (do.top_p, 1e-6, nucleus),
    "min_p": (do.min_p, 0.2, lambda row, share: above(row, share * max(chances(row)))),
    "typical_p": (do.typical_p, 0.6, typical),
    "epsilon_cutoff": (do.epsilon_cutoff, 0.08, above),
    "epsilon_cutoff, above all": (do.epsilon_cutoff, 0.99, above),
    "eta_cutoff": (do.eta_cutoff, 0.4, lambda row, e: above(row, min(e, math.sqrt(e) * math.exp(-entropy(row))))),
    "eta_cutoff, small": (do.eta_cutoff, 0.02, lambda row, e: above(row, min(e, math.sqrt(e) * math.exp(-entropy(row))))),
}


@pytest.mark.parametrize("name", TAILS)
def test_what_is_left_of_a_tail(name: str) -> None:
    cut, value, kept = TAILS[name]
    for found, row in zip(cut(SCORES, value).tolist(), SCORES.tolist(), strict=True):
        expected = kept(row, value)
        assert found == [row[t] if t in expected else -math.inf for t in range(V)]


def test_what_is_banned_stays_banned_and_counts_for_nothing() -> None:
    banned = do.without(SCORES, [2, 3, 10])
    alone = SCORES[:, [t for t in range(V) if t not in (2, 3, 10)]]
    for cut, value in ((do.top_p, 0.7), (do.min_p, 0.2), (do.typical_p, 0.6), (do.epsilon_cutoff, 0.08), (do.eta_cutoff, 0.4)):
        found = cut(banned, value)
        assert found[:, [2, 3, 10]].isneginf().all()
        assert torch.equal(found[:, [t for t in range(V) if t not in (2, 3, 10)]], cut(alone, value))


def test_repetition_penalty() -> None:
    occurs = do.occurring(IDS, REAL, V)
    found = do.repetition_penalty(SCORES, occurs, 1.7).tolist()
    for row in range(3):
        text = {int(t) for t, real in zip(IDS[row], REAL[row], strict=True) if real}
        for token, score in enumerate(SCORES[row].tolist()):
            changed = (score / 1.7 if score > 0 else score * 1.7) if token in text else score
            assert found[row][token] == changed


@pytest.mark.parametrize("size", [1, 2, 3, 6, 7])
def test_no_run_of_tokens_comes_again(size: int) -> None:
    found = do.no_repeated_ngrams(SCORES, IDS, REAL, IDS, REAL, size)
    for row in range(3):
        text = IDS[row][REAL[row]].tolist()
        runs = {tuple(text[i : i + size]) for i in range(len(text) - size + 1)}
        for token in range(V):
            ends = tuple([*text, token][-size:]) in runs and len(text) + 1 >= size
            assert found[row, token] == (-math.inf if ends else SCORES[row, token])


def test_a_run_of_the_source_is_not_written() -> None:
    source, real = torch.tensor([[1, 6, 1, 8], [5, 2, 5, 4], [7, 3, 0, 0]]), torch.ones(3, 4, dtype=torch.bool)
    found = do.no_repeated_ngrams(SCORES, IDS, REAL, source, real, 2)
    banned = [set(row.isneginf().nonzero().flatten().tolist()) for row in found]
    assert banned == [{6, 8}, {2, 4}, {3}]


@pytest.mark.parametrize("sequence", [(4,), (1, 4), (4, 1, 4), (9, 5), (1,) * 9])
def test_a_sequence_is_biased_where_it_would_end(sequence: tuple[int, ...]) -> None:
    found = do.biased_sequence(SCORES, IDS, REAL, sequence, 2.5)
    for row in range(3):
        text, begin = IDS[row][REAL[row]].tolist(), list(sequence[:-1])
        stands = not begin or text[-len(begin) :] == begin
        for token in range(V):
            assert found[row, token] == SCORES[row, token] + (2.5 if stands and token == sequence[-1] else 0.0)


def test_forced_and_banned_tokens() -> None:
    assert do.forced(SCORES, [3, 5]).tolist() == [[0.0 if t in (3, 5) else -math.inf for t in range(V)]] * 3
    found = do.without(SCORES, [3, 5]).tolist()
    assert found == [[-math.inf if t in (3, 5) else x for t, x in enumerate(row)] for row in SCORES.tolist()]


@pytest.mark.parametrize("beyond", [-1, 0, 1, 3])
def test_the_end_comes_nearer(beyond: int) -> None:
    found = do.ending_sooner(SCORES, [2, 4], 1.5, beyond).tolist()
    factor = 1.5 ** max(beyond, 0) - 1
    expected = [[x + abs(x) * factor if t in (2, 4) else x for t, x in enumerate(row)] for row in SCORES.tolist()]
    assert found == expected


def test_what_is_not_finite() -> None:
    largest = torch.finfo(torch.float64).max
    assert do.finite(torch.tensor([[math.nan, math.inf, -math.inf, 2.0]]).double()).tolist() == [[0.0, largest, -largest, 2.0]]


class Bigrams(nn.Module):
    """The next token depends on the last one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = (torch.arange(5 * 5, dtype=torch.float64).view(5, 5) * 1.7).sin() * 2

    def new_cache(self) -> None:
        return None

    def forward(self, ids: Tensor, cache: None = None) -> Tensor:
        return self.table[ids]


PROMPT, END = torch.tensor([[1], [3]]), 4


def every_text(first: int, n_new: int) -> dict[tuple[int, ...], float]:
    """All texts that end at `END`, or after `n_new` tokens, and the logarithms of their probabilities."""
    log_p, found = Bigrams().table.log_softmax(-1), {}
    for length in range(1, n_new + 1):
        for text in product(range(5), repeat=length):
            if END not in text[:-1] and (text[-1] == END or length == n_new):
                found[text] = sum(float(log_p[a, b]) for a, b in zip((first, *text), text, strict=False))
    return found


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 1.0, 2.0])
def test_with_beams_enough_the_best_texts_of_all_are_found(length_penalty: float) -> None:
    given = Settings(
        eos_token_id=[END], num_beams=400, num_return_sequences=5, length_penalty=length_penalty, early_stopping="never"
    )
    for first, row in zip((1, 3), beam_search(Bigrams(), PROMPT, n_new=4, settings=given), strict=True):
        scored = {text: score / len(text) ** length_penalty for text, score in every_text(first, 4).items()}
        best = sorted(scored.values(), reverse=True)[:5]
        assert [beam.score for beam in row] == pytest.approx(best, rel=1e-13)
        assert [scored[beam.tokens] for beam in row] == pytest.approx(best, rel=1e-13)  # of loops in another order, alike
        assert len({beam.tokens for beam in row}) == 5


def test_one_beam_is_greedy_until_the_end() -> None:
    given = Settings(eos_token_id=[END])
    written = generate(Bigrams(), PROMPT, n_new=6, settings=given).tokens.tolist()
    for row, beams in zip(written, beam_search(Bigrams(), PROMPT, n_new=6, settings=given), strict=True):
        text = row[: row.index(END) + 1] if END in row else row
        assert list(beams[0].tokens) == text


def test_when_beams_stop() -> None:
    """At once when enough have ended; when nothing likelier can come; or only when not even the longest text could be."""
    found = {}
    for stop in (True, False, "never"):
        given = Settings(eos_token_id=[0, 2, 4], num_beams=2, length_penalty=3.0, early_stopping=stop)
        found[stop] = [[beam.score for beam in row] for row in beam_search(Bigrams(), PROMPT, n_new=6, settings=given)]
    assert found["never"] >= found[False] >= found[True]
    assert found["never"] != found[True]
