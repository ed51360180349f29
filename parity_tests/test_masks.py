"""The wait-k staircase over a memory that arrives while the target is written."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from parity_tests.harness.compare import BAR, largest_relative
from parity_tests.torch_twins import filled, vectors
from reference_impl.attention import MHA
from reference_impl.cache import LayerCache
from reference_impl.mask import padding_mask, wait_k_mask

S, M = 9, 7


def staircase(k: int, first: int = 0) -> Tensor:
    """As (1, 1, s, m)."""
    return wait_k_mask(torch.arange(first, S), torch.arange(M), k)


def cross_attention() -> MHA:
    return filled(MHA(d_model=12, n_heads=3, d_head=5, scale=5**-0.5, d_memory=14), "f64")


def sequences() -> tuple[Tensor, Tensor]:
    return vectors("target", 2, S, 12).double(), vectors("memory", 2, M, 14).double()


@pytest.mark.parametrize("k", range(1, M + 2))
def test_target_i_sees_the_first_k_plus_i(k: int) -> None:
    expected = [[slot < min(k + i, M) for slot in range(M)] for i in range(S)]
    assert staircase(k)[0, 0].tolist() == expected


def test_a_step_counts_on_from_the_cache() -> None:
    for first in range(S):
        assert torch.equal(staircase(2, first), staircase(2)[:, :, first:])


def test_nothing_to_see_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="wait-k with k = 0: the first target would see nothing"):
        staircase(0)


def test_having_waited_for_everything_is_plain_cross_attention() -> None:
    x, memory = sequences()
    attention = cross_attention()
    everything = torch.ones(1, 1, 1, M, dtype=torch.bool)
    assert torch.equal(attention(x, staircase(M), memory=memory), attention(x, everything, memory=memory))


@pytest.mark.parametrize("k", [1, 2, 5])
def test_it_is_what_a_stream_would_have_computed(k: int) -> None:
    """Each target alone, with the memory cut off where it was when the target was written."""
    x, memory = sequences()
    attention = cross_attention()
    y = attention(x, staircase(k), memory=memory)
    for i in range(S):
        come = memory[:, : min(k + i, M)]
        seen = torch.ones(1, 1, 1, come.shape[1], dtype=torch.bool)
        assert largest_relative(y[:, i : i + 1], attention(x[:, i : i + 1], seen, memory=come)) < BAR


def test_memory_that_has_not_come_changes_nothing() -> None:
    x, memory = sequences()
    attention = cross_attention()
    y = attention(x, staircase(2), memory=memory)
    for slot in range(M):
        changed = memory.clone()
        changed[:, slot] += 1
        other = attention(x, staircase(2), memory=changed)
        moved = (other != y).any(-1).any(0)  # as (s,)
        assert moved.tolist() == [slot < 2 + i for i in range(S)]


def test_over_a_cache_of_the_memory_and_its_padding() -> None:
    x, memory = sequences()
    attention = cross_attention()
    real = torch.arange(M) < torch.tensor([[M], [M - 3]])
    whole = attention(x, staircase(2) & padding_mask(real), memory=memory)
    cache = LayerCache()
    steps = [
        attention(x[:, i : i + 1], staircase(2, i)[:, :, :1] & padding_mask(real), memory=memory, cache=cache)
        for i in range(S)
    ]
    assert largest_relative(torch.cat(steps, 1), whole) < BAR
