"""Laws that hold for every size, position and order, on examples that hypothesis chooses, the same each time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from parity_tests.harness.compare import BAR, largest_relative
from parity_tests.torch_twins import filled, vectors
from reference_impl.attention import MHA, Attention
from reference_impl.mask import causal_mask, wait_k_mask
from reference_impl.mixer import mix_heads
from reference_impl.position import ROTATIONS, RopeConfig, RotaryEmbedding
from reference_impl.rope_scaling import Unscaled
from reference_impl.sinusoidal import sinusoidal_interleaved

LACKING = "hypothesis is not installed: it comes with pip install '.[twins]'"
hypothesis: Any = pytest.importorskip("hypothesis", reason=LACKING)
st: Any = pytest.importorskip("hypothesis.strategies", reason=LACKING)
given = hypothesis.given
examples = hypothesis.settings(derandomize=True, deadline=None, max_examples=30)

S, WIDTH = 8, 6
POSITIONS = st.lists(st.integers(0, 4000), min_size=S, max_size=S)
PAIRINGS = st.sampled_from(["halves", "pairs", "complex"])
ROPE = RotaryEmbedding(RopeConfig(theta=500.0, width=WIDTH, pairing="pairs", scaling=Unscaled()))
EVERYTHING = torch.ones(1, 1, S, S, dtype=torch.bool)
SLOTS = torch.arange(S)


def tables(positions: list[int]) -> tuple[Tensor, Tensor]:
    return ROPE(torch.tensor([positions]), torch.float64)


def heads(name: str) -> Tensor:
    return vectors(name, 1, 2, S, WIDTH).double()


@examples
@given(length=st.integers(1, 9), n_heads=st.integers(1, 9), piece=st.integers(1, 5))
def test_mixing_by_h_and_then_by_t_is_nothing(length: int, n_heads: int, piece: int) -> None:
    x = vectors("tokens", 2, length, n_heads * piece)
    mixed = mix_heads(x, n_heads)
    assert torch.equal(mix_heads(mixed, length), x)
    assert torch.equal(mixed.flatten().sort().values, x.flatten().sort().values)


@examples
@given(position=st.integers(0, 4000), k=st.integers(0, 4000), width=st.integers(1, 12))
def test_sinusoids_k_apart_have_one_product_wherever_they_are(position: int, k: int, width: int) -> None:
    """PE(pos) · PE(pos + k) depends on k alone, as a rotation leaves lengths and angles."""
    there, here = (sinusoidal_interleaved(torch.tensor([first, first + k]), 2 * width) for first in (position, 0))
    assert abs(float(there[0] @ there[1] - here[0] @ here[1])) < BAR * width


@examples
@given(first=POSITIONS, second=POSITIONS, pairing=PAIRINGS)
def test_rope_is_a_rotation(first: list[int], second: list[int], pairing: str) -> None:
    """It keeps lengths; two of them are one, by the sum; and turning back gives what there was."""
    x, rotate = heads("x"), ROTATIONS[pairing]
    cos, sin = tables(first)
    turned = rotate(x, cos, sin)
    assert largest_relative(turned.norm(dim=-1), x.norm(dim=-1)) < BAR
    both = [a + b for a, b in zip(first, second, strict=True)]
    assert largest_relative(rotate(turned, *tables(second)), rotate(x, *tables(both))) < BAR
    assert largest_relative(rotate(turned, cos, -sin), x) < BAR


@examples
@given(positions=POSITIONS, shift=st.integers(0, 4000), pairing=PAIRINGS)
def test_scores_depend_on_relative_positions_only(positions: list[int], shift: int, pairing: str) -> None:
    q, k, rotate = heads("q"), heads("k"), ROTATIONS[pairing]
    here, there = tables(positions), tables([position + shift for position in positions])
    assert largest_relative(rotate(q, *there) @ rotate(k, *there).mT, rotate(q, *here) @ rotate(k, *here).mT) < BAR


@examples
@given(order=st.permutations(range(S)))
def test_attention_without_positions_knows_no_order(order: list[int]) -> None:
    attention = filled(MHA(d_model=10, n_heads=2, d_head=WIDTH, scale=WIDTH**-0.5), "f64")
    x = vectors("x", 2, S, 10).double()
    assert largest_relative(attention(x[:, order], EVERYTHING), attention(x, EVERYTHING)[:, order]) < BAR


def llama_attention() -> Attention:
    sizes = {"d_model": 10, "n_heads": 4, "n_kv_heads": 2, "d_head": WIDTH}
    return filled(Attention(**sizes, qkv_bias=True, out_bias=True, pairing="halves"), "f64")


@examples
@given(order=st.permutations(range(S)))
def test_with_rope_the_order_is_in_the_positions(order: list[int]) -> None:
    """Tokens in another order, each with its own position, give the same; with positions counted anew they do not."""
    attention, x = llama_attention(), vectors("x", 2, S, 10).double()
    straight = attention(x, tables(list(range(S))), EVERYTHING)[:, order]
    assert largest_relative(attention(x[:, order], tables(order), EVERYTHING), straight) < BAR
    if order != list(range(S)):
        assert largest_relative(attention(x[:, order], tables(list(range(S))), EVERYTHING), straight) > 1e6 * BAR


@examples
@given(slot=st.integers(0, S - 1), component=st.integers(0, 9), by=st.sampled_from([-3.0, 0.5, 100.0]))
def test_a_later_token_changes_nothing_before_it(slot: int, component: int, by: float) -> None:
    x, visible = vectors("x", 2, S, 10).double(), causal_mask(SLOTS, SLOTS)
    changed = x.clone()
    changed[:, slot, component] += by
    mha = filled(MHA(d_model=10, n_heads=2, d_head=WIDTH, scale=WIDTH**-0.5), "f64")
    llama, rope = llama_attention(), tables(list(range(S)))
    for before, after in (
        (mha(x, visible), mha(changed, visible)),
        (llama(x, rope, visible), llama(changed, rope, visible)),
    ):
        moved = (before != after).any(-1).any(0)  # as (s,)
        assert moved.tolist() == [query >= slot for query in range(S)]


@examples
@given(k=st.integers(1, 9), targets=st.integers(1, 9), length=st.integers(1, 9))
def test_wait_k_is_a_staircase(k: int, targets: int, length: int) -> None:
    visible = wait_k_mask(torch.arange(targets), torch.arange(length), k)[0, 0].long()
    assert visible.sum(-1).tolist() == [min(k + i, length) for i in range(targets)]
    assert (visible.diff(dim=0) >= 0).all(), "nothing that has come goes away"
    assert (visible.diff(dim=1) <= 0).all(), "the memory comes in its order"
