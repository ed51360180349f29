"""Positions: the sinusoids by the formula and as Marian has them; RoPE's forms shown equal; grouped heads."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from parity_tests.harness.compare import BAR, largest_relative
from parity_tests.torch_twins import filled, vectors
from reference_impl.attention import Attention, merge_heads, split_heads
from reference_impl.encoder_decoder import Stack
from reference_impl.mask import causal_mask
from reference_impl.models.transformer import InterleavedPositions
from reference_impl.position import (
    RopeConfig,
    RotaryEmbedding,
    rotate_complex,
    rotate_gathered,
    rotate_halves,
    rotate_pairs,
)
from reference_impl.rope_scaling import LongRoPE, Unscaled
from reference_impl.sinusoidal import SinusoidalPositions, sinusoidal_halves, sinusoidal_interleaved

# --- sinusoids ---


def by_the_formula(position: int, width: int) -> list[float]:
    """PE(pos)[2i] = sin(pos / 10000^(2i / d)), PE(pos)[2i + 1] = cos(pos / 10000^(2i / d))."""
    out = []
    for component in range(width):
        angle = position / 10000 ** (2 * (component // 2) / width)
        out.append(math.cos(angle) if component % 2 else math.sin(angle))
    return out


@pytest.mark.parametrize("width", [2, 16, 45])
def test_interleaved_by_the_formula(width: int) -> None:
    positions = torch.tensor([[0, 1, 2, 7], [63, 500, 5000, 3]])
    expected = [[by_the_formula(position, width) for position in row] for row in positions.tolist()]
    table = sinusoidal_interleaved(positions, width)
    assert largest_relative(table, torch.tensor(expected, dtype=torch.float64)) < BAR


def test_the_input_is_the_scaled_embedding_and_the_position() -> None:
    """TokenEmbedding(ids) * sqrt(d_model) + PE(pos): a stack of no layers."""
    embed = torch.nn.Embedding(31, 14)
    stack = Stack(
        embed=embed, scale=math.sqrt(14), positions=InterleavedPositions(14), layers=(), causal=False, dropout=0.1
    )
    filled(stack, "f64")
    ids, table = [[5, 30, 5, 0], [1, 2, 3, 4]], embed.weight.tolist()
    expected = [
        [
            [c * math.sqrt(14) + p for c, p in zip(table[token], by_the_formula(position, 14), strict=True)]
            for position, token in enumerate(row)
        ]
        for row in ids
    ]
    assert largest_relative(stack(torch.tensor(ids)), torch.tensor(expected, dtype=torch.float64)) < BAR


@pytest.mark.parametrize("k", [1, 13, 400])
def test_a_step_of_k_positions_is_one_rotation(k: int) -> None:
    """PE(pos + k) = R(k) PE(pos), with a block (cos, sin; -sin, cos) of angle k * frequency for each (sin, cos): that
    of RoPE with the sign turned, as sines come before cosines.
    """
    width, positions = 16, torch.arange(50)
    angle = [k / 10000 ** (2 * i / width) for i in range(width // 2)]
    blocks = [[[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]] for a in angle]
    rotation = torch.block_diag(*torch.tensor(blocks, dtype=torch.float64))
    before, after = sinusoidal_interleaved(positions, width), sinusoidal_interleaved(positions + k, width)
    assert largest_relative(before @ rotation.T, after) < BAR
    turn = torch.tensor([[angle] * 50], dtype=torch.float64)
    assert largest_relative(rotate_pairs(before[None, None], turn.cos(), -turn.sin())[0, 0], after) < BAR


@pytest.mark.parametrize(("n", "width"), [(512, 512), (1024, 64), (70, 45)])
def test_halves_are_marians_table_bit_for_bit(n: int, width: int) -> None:
    config = transformers.MarianConfig(
        vocab_size=5,
        d_model=width,
        max_position_embeddings=n,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=1,
        decoder_attention_heads=1,
        encoder_ffn_dim=3,
        decoder_ffn_dim=3,
        pad_token_id=0,
    )
    theirs = transformers.MarianModel(config).encoder.embed_positions
    assert not theirs.weight.requires_grad
    mine = SinusoidalPositions(n, width)
    assert torch.equal(mine(torch.arange(n)[None])[0], theirs.weight)
    later = theirs(torch.Size([2, 5]), 11)  # five tokens after eleven
    assert torch.equal(mine(torch.arange(11, 16)[None]).expand(2, -1, -1), later.expand(2, -1, -1))


@pytest.mark.parametrize("width", [44, 45])
def test_interleaved_and_halves_are_one_permutation_apart(width: int) -> None:
    positions = torch.arange(60)
    order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
    assert torch.equal(sinusoidal_interleaved(positions, width).float()[:, order], sinusoidal_halves(positions, width))


@pytest.mark.parametrize("position", [-1, 8])
def test_a_position_past_the_table_is_a_clear_error(position: int) -> None:
    with pytest.raises(ValueError, match=f"position {position} has no embedding: the table holds positions 0 to 7"):
        SinusoidalPositions(8, 6)(torch.tensor([[0, position]]))


# --- RoPE ---

WIDTH, THETA = 12, 500.0
HALVES = torch.cat([torch.arange(0, WIDTH, 2), torch.arange(1, WIDTH, 2)])
"""Where the components of pairs side by side stand when they are half a head apart."""


def tables(positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin in float64, as (b, s, p)."""
    config = RopeConfig(theta=THETA, width=WIDTH, pairing="halves", scaling=Unscaled())
    return RotaryEmbedding(config)(positions, torch.float64)


def by_complex_numbers(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(x[2i] + x[2i + 1] i) * e^(i * position * frequency)."""
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.complex(cos, sin)[:, None]
    return torch.view_as_real(turned).flatten(-2)


def by_block_matrices(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """R x with a matrix (e, e) for each position, zero but for blocks (cos, -sin; sin, cos)."""
    block = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)  # as (b, s, p, 2, 2)
    matrix = torch.stack([torch.block_diag(*blocks) for blocks in block.flatten(0, 1)])  # as (b * s, e, e)
    return torch.einsum("bsij,bhsj->bhsi", matrix.unflatten(0, cos.shape[:2]), x)


def halves_of_permuted(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs put half a head apart, turned there, and put back."""
    return rotate_halves(x[..., HALVES], cos, sin)[..., HALVES.argsort()]


def gathered_and_back(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rotate_gathered(x, cos, sin)[..., HALVES.argsort()]


@pytest.mark.parametrize(
    "form", [rotate_complex, by_complex_numbers, by_block_matrices, halves_of_permuted, gathered_and_back]
)
def test_forms_of_rope_are_one(form: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    positions = torch.stack([torch.arange(17), torch.arange(17) * 11])
    x = vectors("rotated", 2, 3, 17, WIDTH).double()
    assert largest_relative(form(x, *tables(positions)), rotate_pairs(x, *tables(positions))) < BAR


def test_angles_by_the_formula() -> None:
    """position * theta^(-2i / e), where checkpoints have the frequency rounded to float32: seven digits, no more."""
    cos, sin = tables(torch.arange(20)[None])
    angle = [[position * THETA ** (-2 * i / WIDTH) for i in range(WIDTH // 2)] for position in range(20)]
    assert largest_relative(cos[0], torch.tensor(angle, dtype=torch.float64).cos()) < 1e-5
    assert largest_relative(sin[0], torch.tensor(angle, dtype=torch.float64).sin()) < 1e-5


def test_permuting_q_and_k_alike_leaves_the_scores() -> None:
    positions = torch.arange(17)[None]
    q, k = vectors("q", 1, 3, 17, WIDTH).double(), vectors("k", 1, 3, 17, WIDTH).double()
    rope = tables(positions)
    scores = rotate_pairs(q, *rope) @ rotate_pairs(k, *rope).mT
    permuted = rotate_halves(q[..., HALVES], *rope) @ rotate_halves(k[..., HALVES], *rope).mT
    assert largest_relative(permuted, scores) < BAR
    unpermuted = rotate_halves(q, *rope) @ rotate_halves(k, *rope).mT
    assert largest_relative(unpermuted, scores) > 0.1


@pytest.mark.parametrize("rotate", [rotate_halves, rotate_pairs, rotate_gathered])
def test_only_the_relative_position_matters(rotate: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    q, k = vectors("q", 1, 3, 17, WIDTH).double(), vectors("k", 1, 3, 17, WIDTH).double()
    positions = torch.arange(17)[None]

    def scores(shift_q: int, shift_k: int) -> Tensor:
        return rotate(q, *tables(positions + shift_q)) @ rotate(k, *tables(positions + shift_k)).mT

    assert largest_relative(scores(300, 300), scores(0, 0)) < BAR
    assert largest_relative(scores(301, 300), scores(0, 0)) > 0.1
    assert torch.equal(rotate(q, *tables(torch.zeros(1, 17, dtype=torch.long)))[..., :1], q[..., :1])  # no turn at 0


LONGROPE = LongRoPE(
    short_factor=(1.0, 1.1, 1.25, 1.5, 2.0, 2.5),
    long_factor=(1.0, 1.5, 2.5, 4.0, 6.0, 8.0),
    factor=4.0,
    original_positions=32,
    attention_factor=None,
)


@pytest.mark.parametrize(("length", "factors"), [(32, LONGROPE.short_factor), (33, LONGROPE.long_factor)])
def test_longrope_by_the_formula(length: int, factors: tuple[float, ...]) -> None:
    """Angles of pos / (factor[i] * theta^(2i / e)), the short factors up to the original length, and an amplitude of
    sqrt(1 + ln(factor) / ln(original)).
    """
    rope = RotaryEmbedding(RopeConfig(theta=THETA, width=WIDTH, pairing="halves", scaling=LONGROPE))
    cos, sin = rope(torch.arange(length)[None], torch.float64)
    amplitude = math.sqrt(1 + math.log(4) / math.log(32))
    angle = torch.tensor([(length - 1) / (f * THETA ** (2 * i / WIDTH)) for i, f in enumerate(factors)]).double()
    assert largest_relative(cos[0, -1], angle.cos() * amplitude) < 1e-5
    assert largest_relative(sin[0, -1], angle.sin() * amplitude) < 1e-5


# --- grouped heads ---


def grouped(n_kv_heads: int) -> Attention:
    return filled(
        Attention(
            d_model=20,
            n_heads=6,
            n_kv_heads=n_kv_heads,
            d_head=WIDTH,
            qkv_bias=True,
            out_bias=True,
            pairing="halves",
        ),
        "f64",
    )


@pytest.mark.parametrize("n_kv_heads", [1, 2, 3, 6])
def test_repeat_is_repeat_interleave(n_kv_heads: int) -> None:
    x = vectors("keys", 2, n_kv_heads, 9, WIDTH)
    assert torch.equal(grouped(n_kv_heads).repeat(x), x.repeat_interleave(6 // n_kv_heads, dim=1))


@pytest.mark.parametrize("n_kv_heads", [1, 2, 3, 6])
def test_attention_is_sdpa_with_enable_gqa(n_kv_heads: int) -> None:
    attention, x = grouped(n_kv_heads), vectors("x", 2, 9, 20).double()
    rope, slots = tables(torch.arange(9)[None]), torch.arange(9)
    q = rotate_halves(split_heads(attention.q_proj(x), 6), *rope)
    k = rotate_halves(split_heads(attention.k_proj(x), n_kv_heads), *rope)
    v = split_heads(attention.v_proj(x), n_kv_heads)
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    mine = attention(x, rope, causal_mask(slots, slots))
    assert largest_relative(attention.o_proj(merge_heads(theirs)), mine) < BAR


def test_one_key_head_a_query_head_is_mha_and_one_for_all_is_mqa() -> None:
    """The same keys and values written out for every query head give the same numbers."""
    x, slots = vectors("x", 2, 9, 20).double(), torch.arange(9)
    rope, visible = tables(slots[None]), causal_mask(slots, slots)
    for n_kv_heads in (1, 2, 3):
        few, full = grouped(n_kv_heads), grouped(6)
        state = few.state_dict()
        for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
            by_head = state[name].unflatten(0, (n_kv_heads, WIDTH))
            state[name] = by_head.repeat_interleave(6 // n_kv_heads, dim=0).flatten(0, 1)
        full.load_state_dict(state)
        assert largest_relative(few(x, rope, visible), full(x, rope, visible)) < BAR
