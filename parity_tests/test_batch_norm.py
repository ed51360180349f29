"""BatchNorm against torch's, in training and evaluation, backwards, and in what it remembers over several steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from parity_tests.fixtures.values import around_one, bias
from parity_tests.harness.compare import BAR, largest_relative
from parity_tests.torch_twins import filled, vectors
from reference_impl.batch_norm import BatchNorm
from reference_impl.norm import LayerNorm

WIDTH, EPS = 5, 3e-3
SHAPES: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "tokens": (nn.BatchNorm1d, (7, WIDTH)),
    "sequence": (nn.BatchNorm1d, (4, WIDTH, 6)),
    "image": (nn.BatchNorm2d, (3, WIDTH, 4, 2)),
}
FILL = (("running_mean", bias), ("running_var", around_one), ("weight", around_one), ("bias", bias))


def both(kind: type[nn.Module], momentum: float | None) -> tuple[Any, Any]:
    """torch's in float64, filled, and ours with the same weights and the same memory."""
    twin = kind(WIDTH, eps=EPS, momentum=momentum)
    count = twin.state_dict()["num_batches_tracked"]
    twin.load_state_dict({**filled_state(twin), "num_batches_tracked": count})
    twin.double()
    mine = BatchNorm(WIDTH, EPS, momentum).double()
    names = {"num_batches_tracked": "n_seen"}
    mine.load_state_dict({names.get(name, name): value for name, value in twin.state_dict().items()})
    return twin, mine


def filled_state(twin: nn.Module) -> dict[str, Tensor]:
    bare = nn.Module()
    for name, value in twin.state_dict().items():
        if value.is_floating_point():
            bare.register_buffer(name, torch.empty_like(value))
    return filled(bare, "f32", FILL).state_dict()


def batch(step: int, shape: tuple[int, ...]) -> Tensor:
    """Of another mean and another spread in every channel."""
    scale = (torch.arange(WIDTH) + 1.0).view(-1, *[1] * (len(shape) - 2))
    return (vectors(f"batch {step}", *shape).double() * scale + scale).requires_grad_(True)


def same(twin: Any, mine: Any) -> bool:
    pairs = [(twin.running_mean, mine.running_mean), (twin.running_var, mine.running_var)]
    return twin.num_batches_tracked == mine.n_seen and all(largest_relative(b, a) < BAR for a, b in pairs)


@pytest.mark.parametrize("momentum", [0.1, 0.75, None])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_torchs(shape: str, momentum: float | None) -> None:
    kind, sizes = SHAPES[shape]
    twin, mine = both(kind, momentum)
    for training in (False, True, True, True, False):
        for side in (twin, mine):
            side.train(training)
        step = int(twin.num_batches_tracked)
        x = batch(step, sizes)
        theirs, ours = twin(x), mine(x)
        assert largest_relative(ours, theirs) < BAR
        weights = vectors("of the output", *sizes).double()
        g, their_g = (
            torch.autograd.grad((y * weights).sum(), [x, side.weight, side.bias]) for y, side in ((ours, mine), (theirs, twin))
        )
        assert all(largest_relative(a, b) < BAR for a, b in zip(g, their_g, strict=True))
        assert same(twin, mine)
    assert twin.num_batches_tracked == 3


def test_one_value_a_channel_has_no_variance() -> None:
    twin, mine = both(nn.BatchNorm1d, 0.1)
    for side in (twin.train(), mine.train()):
        with pytest.raises(ValueError, match=r"one value|more than 1 value"):
            side(torch.ones(1, WIDTH, dtype=torch.float64))


def test_its_index_is_the_channel_and_layer_norms_the_sample() -> None:
    """R2: the one takes all samples of a channel, the other all channels of a sample; so each is the other, transposed."""
    x = vectors("square", 6, 6).double()
    batch_norm = BatchNorm(6, EPS, 0.1).double().train()
    layer_norm = LayerNorm(6, EPS).double()
    layer_norm.load_state_dict({"weight": torch.ones(6), "bias": torch.zeros(6)})
    with torch.no_grad():
        assert largest_relative(batch_norm(x), layer_norm(x.T).T) < BAR
        assert largest_relative(batch_norm(x), layer_norm(x)) > 0.1


def by_sample(norm: Any) -> None:
    def forward(x: Tensor) -> Tensor:
        return (x - x.mean(1, keepdim=True)) * torch.rsqrt(x.var(1, keepdim=True, correction=0) + EPS)

    norm.forward = forward


def remembers(change: Callable[[Any, Tensor, Tensor, int], tuple[Tensor, Tensor, int]]) -> Callable[[Any], None]:
    def apply(norm: Any) -> None:
        right = norm._remember
        norm._remember = lambda mean, variance, n: right(*change(norm, mean, variance, n))

    return apply


def of_the_batch(norm: Any) -> None:
    norm.eval = lambda: norm


DEVIATIONS: dict[str, Callable[[Any], object]] = {
    "normalised by sample": by_sample,
    "eps left out": lambda norm: setattr(norm, "eps", 0.0),
    "momentum is the share of the old": lambda norm: setattr(norm, "momentum", 1 - norm.momentum),
    "the variance remembered is divided by n": remembers(lambda norm, mean, variance, n: (mean, variance * (n - 1) / n, n)),
    "the mean remembered is 0": remembers(lambda norm, mean, variance, n: (0 * mean, variance, n)),
    "the batch's own statistics in evaluation": of_the_batch,
    "weight left out": lambda norm: nn.init.ones_(norm.weight),
    "bias left out": lambda norm: nn.init.zeros_(norm.bias),
}


@pytest.mark.parametrize("departure", DEVIATIONS)
def test_a_departure_is_caught(departure: str) -> None:
    """Two steps of training, then evaluation: what comes out is another."""
    kind, sizes = SHAPES["sequence"]
    twin, mine = both(kind, 0.75)
    DEVIATIONS[departure](mine)
    worst = 0.0
    with torch.no_grad():
        for step in range(3):
            for side in (twin, mine):
                side.train() if step < 2 else side.eval()
            worst = max(worst, largest_relative(mine(batch(step, sizes)), twin(batch(step, sizes))))
    assert worst > 1e3 * BAR
