"""Blocks in the other forms that the seeds give them: a product of explicit matrices, a convolution, a loop, a fused kernel."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from parity_tests.fixtures.values import around_one, bias, linear
from parity_tests.harness.compare import BAR, DTYPES, l2_relative, largest_relative
from parity_tests.harness.shapes import unchecked
from parity_tests.torch_twins import filled, vectors
from reference_impl.attention import softmax_attention
from reference_impl.fourier import FourierMixing
from reference_impl.mixer import MobileNetBlock
from reference_impl.pooling import PoolMixing
from reference_impl.rwkv import no_sums, wkv, wkv_parallel
from reference_impl.sinusoidal import sinusoidal_interleaved

# --- positions that are added: four terms ---


def test_scores_of_added_positions_have_four_terms() -> None:
    """(x + p) Wq ((y + q) Wk)^T = content-content + content-position + position-content + position-position."""
    n, d = 7, 12
    x, p = vectors("tokens", n, d).double(), sinusoidal_interleaved(torch.arange(n), d)
    wq, wk = (vectors(name, d, d).double() for name in ("wq", "wk"))
    terms = [a @ wq @ (b @ wk).T for a in (x, p) for b in (x, p)]
    whole = (x + p) @ wq @ ((x + p) @ wk).T
    assert largest_relative(sum(terms[1:], terms[0]), whole) < BAR
    for left_out in range(4):
        rest = sum((term for i, term in enumerate(terms) if i != left_out), torch.zeros_like(whole))
        assert largest_relative(rest, whole) > 1e-3
    moved = sinusoidal_interleaved(torch.arange(n) + 5, d)
    only = [a @ wq @ (b @ wk).T for a, b in ((p, p), (moved, moved))]
    assert largest_relative(*only) > 1e-3, "with projections between them, positions do not depend on their distance alone"
    bare = [a @ a.T for a in (p, moved)]
    assert largest_relative(*bare) < BAR, "without, they do"


# --- RWKV: a recurrence, a convolution ---


def causal_convolution(kernel: Tensor, x: Tensor) -> Tensor:
    """y[t] = sum over i <= t of kernel[t - i] x[i], by channel: kernel (s, f), x (b, s, f)."""
    s, f = kernel.shape
    padded = F.pad(x.mT, (s - 1, 0))
    return F.conv1d(padded, kernel.flip(0).T[:, None], groups=f).mT


@pytest.mark.parametrize("length", [1, 2, 9, 40])
def test_rwkv_is_a_causal_convolution(length: int) -> None:
    """Numerator and denominator are one kernel's, exp((age - 1) decay), over exp(k) v and exp(k); the token itself weighs
    exp(first) instead.
    """
    f = 3
    k, v = vectors("k", 2, length, f).double(), vectors("v", 2, length, f).double()
    decay, first = -vectors("decay", f).double().abs(), vectors("first", f).double()
    ages = torch.arange(length, dtype=torch.float64)[:, None]
    kernel = torch.where(ages > 0, torch.exp((ages - 1) * decay), torch.exp(first))
    weights = torch.exp(k)
    y = causal_convolution(kernel, weights * v) / causal_convolution(kernel, weights)
    with unchecked():
        for form in (wkv, wkv_parallel):
            assert largest_relative(form(k, v, decay, first, no_sums(k))[0], y) < BAR


class Counted(TorchDispatchMode):
    """Counts the numbers that operations give."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and not func.is_view:
            self.numbers += out.numel()
        return out


def test_the_recurrence_costs_a_token_the_same_and_the_parallel_form_more_with_length() -> None:
    costs: dict[str, list[float]] = {}
    for form in (wkv, wkv_parallel):
        for length in (32, 64):
            k, v = vectors("k", 1, length, 4).double(), vectors("v", 1, length, 4).double()
            with unchecked(), Counted() as counted:
                form(k, v, -torch.ones(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64), no_sums(k))
            costs.setdefault(form.__name__, []).append(counted.numbers / length)
    assert costs["wkv"][1] / costs["wkv"][0] < 1.05
    assert costs["wkv_parallel"][1] / costs["wkv_parallel"][0] > 1.8


# --- FNet and PoolFormer ---


@pytest.mark.parametrize(("s", "d"), [(1, 1), (4, 6), (7, 5), (16, 12)])
def test_fnets_transform_is_a_product_with_two_matrices(s: int, d: int) -> None:
    """Re(W_s x W_d) with W_n[j, k] = exp(-2 pi i j k / n)."""

    def matrix(n: int) -> Tensor:
        places = torch.arange(n, dtype=torch.float64)
        return torch.polar(torch.ones(n, n, dtype=torch.float64), -2 * math.pi * places[:, None] * places / n)

    x = vectors("fourier", 2, s, d).double()
    expected = (matrix(s) @ x.to(torch.complex128) @ matrix(d)).real
    assert largest_relative(FourierMixing()(x), expected) < BAR


@pytest.mark.parametrize("size", [1, 3, 5])
def test_poolformers_mixer_by_a_loop(size: int) -> None:
    x = vectors("pool", 1, 2, 4, 5).double()
    expected = torch.empty_like(x)
    for c in range(2):
        for i in range(4):
            for j in range(5):
                rows, columns = (range(max(at - size // 2, 0), min(at + size // 2 + 1, n)) for at, n in ((i, 4), (j, 5)))
                near = [float(x[0, c, a, b]) for a in rows for b in columns]
                expected[0, c, i, j] = sum(near) / len(near) - x[0, c, i, j]
    found = PoolMixing(size)(x)
    assert (found - expected).abs().max() < BAR
    assert bool(found.any()) == (size > 1)


# --- MobileNet's block ---


def mobilenet(d_in: int, d_out: int) -> list[Any]:
    """transformers' two layers of a block, depthwise and point, filled."""
    if not hasattr(transformers, "MobileNetV1Config"):
        pytest.skip(f"transformers {transformers.__version__} has no MobileNetV1")
    theirs = importlib.import_module("transformers.models.mobilenet_v1.modeling_mobilenet_v1").MobileNetV1ConvLayer
    config = transformers.MobileNetV1Config(tf_padding=False, layer_norm_eps=3e-3)
    depth = theirs(config, d_in, d_in, kernel_size=3, groups=d_in)
    return [filled(layer, "f64", NORMS) for layer in (depth, theirs(config, d_in, d_out, kernel_size=1))]


NORMS = (
    ("*running_mean", bias),
    ("*running_var", around_one),
    ("*num_batches_tracked", lambda name, shape: torch.zeros(shape)),
    ("normalization.weight", around_one),
    ("*bias", bias),
    ("*weight", linear(1.0)),
)


def test_mobilenets_block() -> None:
    """Depthwise convolution, norm, activation, 1 x 1 convolution, norm, activation: in evaluation, in training, and in what
    its norms remember.
    """
    twins = mobilenet(6, 9)
    twins[1].convolution.weight.data *= 8
    mine = MobileNetBlock(d_in=6, d_out=9, kernel=3, eps=3e-3, momentum=twins[0].normalization.momentum).double()
    for layer, name in zip(twins, ("depth", "point"), strict=True):
        weight = layer.convolution.weight
        getattr(mine, name).weight.data = weight[:, 0] if name == "depth" else weight[:, :, 0, 0]
        norm = {key.replace("num_batches_tracked", "n_seen"): t for key, t in layer.normalization.state_dict().items()}
        getattr(mine, f"{name}_norm").load_state_dict(norm)
    x = 12 * vectors("image", 2, 5, 4, 6).double()
    bounds: list[tuple[float, float]] = []
    with torch.no_grad():
        for training in (False, True, True, False):
            y = x.movedim(-1, 1)
            for layer in twins:
                y = layer.train(training)(y)
            ours = mine.train(training)(x)
            assert largest_relative(ours, y.movedim(1, -1)) < BAR
            bounds.append((float(ours.min()), float(ours.max())))
        assert bounds[0] == (0, 6), "both ends of the activation are reached"
        for layer, name in zip(twins, ("depth_norm", "point_norm"), strict=True):
            kept = getattr(mine, name)
            assert largest_relative(kept.running_mean, layer.normalization.running_mean) < BAR
            assert largest_relative(kept.running_var, layer.normalization.running_var) < BAR


DEPARTURES: dict[str, Callable[[Any], None]] = {
    "a norm left out": lambda block: setattr(block, "depth_norm", nn.Identity()),
    "the norms change places": lambda block: block.depth_norm.weight.data.copy_(block.point_norm.weight[:6]),
    "another kernel": lambda block: block.depth.weight.data.copy_(block.depth.weight.flip(-1)),
    "channels not mixed": lambda block: block.point.weight.data.copy_(torch.eye(9, 6)),
}


@pytest.mark.parametrize("departure", DEPARTURES)
def test_a_departure_of_mobilenets_block_shows(departure: str) -> None:
    counts = ("*n_seen", lambda name, shape: torch.zeros(shape))
    mine = filled(MobileNetBlock(d_in=6, d_out=9, kernel=3, eps=3e-3, momentum=0.1), "f64", (counts, *NORMS))
    x = 3 * vectors("image", 2, 5, 4, 6).double()
    with torch.no_grad():
        before = mine(x)
        DEPARTURES[departure](mine)
        assert largest_relative(mine(x), before) > 1e-3


# --- attention: a fused kernel, and the rank of its weights ---


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("precision", ["f64", "f32", "bf16"])
def test_flash_attention_is_softmax_attention(precision: str, causal: bool) -> None:
    """torch's flash kernel for the CPU, which never holds all the weights: tile by tile it comes to the same."""
    q, k, v = (vectors(name, 2, 3, 150, 16).to(DTYPES[precision]) for name in ("q", "k", "v"))
    past = torch.ones(150, 150, dtype=torch.bool)
    past = (past.tril() if causal else past)[None, None]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        fused = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    ours, oracle = (softmax_attention(a @ b.mT / 4, past) @ c for a, b, c in ((q, k, v), (q.double(), k.double(), v.double())))
    if precision == "f64":
        assert largest_relative(fused, oracle) < BAR
    else:
        assert l2_relative(fused, oracle) <= 2 * l2_relative(ours, oracle) + torch.finfo(fused.dtype).eps


def test_weights_that_look_back_alone_have_full_rank() -> None:
    """R2, 3.2: where every token sees all, what they see may be one and the same; a triangle with a diagonal that is not 0 has
    full rank, whatever the tokens are.
    """
    same = vectors("token", 1, 1, 1, 8).double().expand(1, 1, 6, 8)
    some = vectors("tokens", 1, 1, 6, 8).double()
    past = torch.ones(6, 6, dtype=torch.bool)[None, None]
    for tokens, rank in ((same, 1), (some, 6)):
        both_ways, backwards = (softmax_attention(tokens @ tokens.mT, mask) for mask in (past, past.tril()))
        assert int(torch.linalg.matrix_rank(both_ways)) == rank
        assert int(torch.linalg.matrix_rank(backwards)) == 6
