"""Token mixers without a twin, against scalar loops of their formula; the separable convolution against torch's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from parity_tests.harness.compare import BAR, largest_relative
from parity_tests.torch_twins import filled, vectors
from reference_impl.ffn import FFN
from reference_impl.mixer import (
    DepthwiseConv,
    PerTokenFFN,
    RankMixerLayer,
    SeparableConv,
    TokenMixerLargeLayer,
    mix_heads,
)

EPS = 3e-5
Rows = list[list[float]]
"""A sequence of tokens, each a list of its components."""
Parameters = Mapping[str, list]

# --- the formulas, one number at a time ---


def added(x: Rows, y: Rows) -> Rows:
    return [[a + b for a, b in zip(token, other, strict=True)] for token, other in zip(x, y, strict=True)]


def normed(x: Rows, of: Parameters, name: str) -> Rows:
    """(x - Mean(x)) * rsqrt(Var(x) + eps) * weight + bias."""
    out = []
    for token in x:
        mean = sum(token) / len(token)
        variance = sum((c - mean) ** 2 for c in token) / len(token)
        scale = 1 / math.sqrt(variance + EPS)
        parts = zip(token, of[f"{name}.weight"], of[f"{name}.bias"], strict=True)
        out.append([(c - mean) * scale * weight + bias for c, weight, bias in parts])
    return out


def mixed(x: Rows, n_heads: int) -> Rows:
    """New token h is Concat(x[1][h], x[2][h], ..., x[T][h])."""
    piece = len(x[0]) // n_heads
    return [[token[h * piece + i] for token in x for i in range(piece)] for h in range(n_heads)]


def linear(token: list[float], weight: Rows, bias: list[float]) -> list[float]:
    return [sum(w * c for w, c in zip(row, token, strict=True)) + b for row, b in zip(weight, bias, strict=True)]


def networks(x: Rows, of: Parameters, name: str) -> Rows:
    """LinearOut(GELU(LinearIn(token))), every token through its own."""
    out = []
    for token, w_in, b_in, w_out, b_out in zip(
        x, *(of[f"{name}.{part}"] for part in ("in_weight", "in_bias", "out_weight", "out_bias")), strict=True
    ):
        inner = [0.5 * c * (1 + math.erf(c / math.sqrt(2))) for c in linear(token, w_in, b_in)]
        out.append(linear(inner, w_out, b_out))
    return out


def rank_mixer(x: Rows, of: Parameters) -> Rows:
    """The norm last, as published."""
    z = normed(added(x, mixed(x, len(x))), of, "mix_norm")
    return normed(added(z, networks(z, of, "ffn")), of, "ffn_norm")


def rank_mixer_norm_first(x: Rows, of: Parameters) -> Rows:
    """z = x + TokenMixer(Norm(x)); y = z + ChannelMixer(Norm(z))."""
    z = added(x, mixed(normed(x, of, "mix_norm"), len(x)))
    return added(z, networks(normed(z, of, "ffn_norm"), of, "ffn"))


def token_mixer_large(n_heads: int) -> Callable[[Rows, Parameters], Rows]:
    """The same with a network on the mixed tokens, and their order restored before the residual."""

    def layer(x: Rows, of: Parameters) -> Rows:
        inside = networks(mixed(normed(x, of, "mix_norm"), n_heads), of, "mixed_ffn")
        piece = len(x[0]) // n_heads
        restored = [[inside[h][t * piece + i] for h in range(n_heads) for i in range(piece)] for t in range(len(x))]
        z = added(x, restored)
        return added(z, networks(normed(z, of, "ffn_norm"), of, "ffn"))

    return layer


# --- the rearrangement ---


@pytest.mark.parametrize(("length", "n_heads"), [(6, 6), (6, 3), (4, 6), (5, 1), (1, 3)])
def test_mix_heads_by_the_formula(length: int, n_heads: int) -> None:
    x = vectors("mixed", 2, length, 12).double()
    y = mix_heads(x, n_heads)
    assert y.tolist() == [mixed(row, n_heads) for row in x.tolist()]
    assert torch.equal(mix_heads(y, length), x)


def test_a_token_that_cannot_be_cut_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="a token of width 12 cannot be cut into 5 equal pieces"):
        mix_heads(vectors("mixed", 2, 5, 12), 5)


# --- layers ---

LAYERS: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[Rows, Parameters], Rows]]] = {
    "rank_mixer": (
        lambda: RankMixerLayer(length=4, d_model=12, d_ff=17, norm_eps=EPS, norm_first=False),
        rank_mixer,
    ),
    "rank_mixer-norm_first": (
        lambda: RankMixerLayer(length=4, d_model=12, d_ff=17, norm_eps=EPS, norm_first=True),
        rank_mixer_norm_first,
    ),
    "token_mixer_large": (
        lambda: TokenMixerLargeLayer(length=4, d_model=12, n_heads=4, d_ff=17, norm_eps=EPS),
        token_mixer_large(4),
    ),
    "token_mixer_large-other_heads": (
        lambda: TokenMixerLargeLayer(length=4, d_model=12, n_heads=6, d_ff=17, norm_eps=EPS),
        token_mixer_large(6),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer_by_scalar_loops(name: str) -> None:
    make, formula = LAYERS[name]
    layer = filled(make(), "f64")
    of = {name: parameter.tolist() for name, parameter in layer.named_parameters()}
    for scale in (1.0, 1e-3):
        x = vectors("tokens", 3, 4, 12).double() * scale
        expected = torch.tensor([formula(row, of) for row in x.tolist()], dtype=torch.float64)
        assert largest_relative(layer(x), expected) < BAR


def test_with_the_order_restored_a_token_meets_itself_in_the_residual() -> None:
    """Without the networks, what is added to a token depends on this token alone; in RankMixer it depends on all."""
    x = vectors("tokens", 1, 4, 12).double()

    def reach(layer: RankMixerLayer | TokenMixerLargeLayer) -> Tensor:
        """(t, s): whether output token t depends on input token s."""
        jacobian = torch.autograd.functional.jacobian(layer, x)
        assert isinstance(jacobian, Tensor)
        return jacobian[0, :, :, 0].abs().amax((1, 3)) > 0

    large = filled(TokenMixerLargeLayer(length=4, d_model=12, n_heads=4, d_ff=17, norm_eps=EPS), "f64")
    large.mixed_ffn.forward = large.ffn.forward = lambda x: x
    assert torch.equal(reach(large), torch.eye(4, dtype=torch.bool))
    plain = filled(RankMixerLayer(length=4, d_model=12, d_ff=17, norm_eps=EPS, norm_first=True), "f64")
    plain.ffn.forward = lambda x: x
    assert reach(plain).all()


def test_every_token_has_its_own_network() -> None:
    layer = filled(PerTokenFFN(length=5, d_model=12, d_ff=17, activation="gelu"), "f64")
    x = vectors("tokens", 3, 5, 12).double()
    y = layer(x)
    for token in range(5):
        ffn = FFN(d_model=12, d_ff=17, bias=True, activation="gelu").double()
        names = {"in_proj.weight": "in_weight", "in_proj.bias": "in_bias", "out_proj.weight": "out_weight"}
        names |= {"out_proj.bias": "out_bias"}
        ffn.load_state_dict({mine: getattr(layer, name)[token].detach() for mine, name in names.items()})
        own = ffn(x)
        assert largest_relative(y[:, token], own[:, token]) < BAR
        assert all(largest_relative(y[:, other], own[:, other]) > 0.1 for other in range(5) if other != token)


# --- the depthwise-separable convolution ---


def as_torch(x: Tensor) -> Tensor:
    """(b, height, width, d) -> (b, d, height, width)."""
    return x.movedim(-1, 1)


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_separable_convolution(kernel: int) -> None:
    """A convolution with a group a channel, which mixes tokens, and one of 1 x 1, which mixes channels; or one by their
    product.
    """
    layer = filled(SeparableConv(d_in=7, d_out=10, kernel=kernel), "f64")
    depth, point = layer.depth.weight, layer.point.weight
    x = vectors("picture", 2, 9, 11, 7).double()
    mixed = F.conv2d(as_torch(x), depth[:, None], padding=kernel // 2, groups=7)
    assert largest_relative(mixed, as_torch(layer.depth(x))) < BAR
    assert largest_relative(F.conv2d(mixed, point[:, :, None, None]), as_torch(layer(x))) < BAR
    product = torch.einsum("oc,cij->ocij", point, depth)
    assert largest_relative(F.conv2d(as_torch(x), product, padding=kernel // 2), as_torch(layer(x))) < BAR


def test_the_depthwise_part_mixes_tokens_and_the_point_part_channels() -> None:
    """Each output depends on its own channel alone, or on its own pixel alone."""
    layer = filled(SeparableConv(d_in=4, d_out=4, kernel=3), "f64")
    x = vectors("picture", 1, 5, 6, 4).double()
    depth, point = (torch.autograd.functional.jacobian(part, x) for part in (layer.depth, layer.point))
    assert isinstance(depth, Tensor)
    assert isinstance(point, Tensor)
    channels = depth[0, :, :, :, 0].abs().amax((0, 1, 3, 4)) > 0  # as (d, d)
    assert torch.equal(channels, torch.eye(4, dtype=torch.bool))
    pixels = point[0, :, :, :, 0].abs().amax((2, 5)).flatten(0, 1).flatten(1) > 0  # as (pixels, pixels)
    assert torch.equal(pixels, torch.eye(30, dtype=torch.bool))


def test_a_kernel_without_a_middle_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="a kernel of 4 pixels has no middle"):
        DepthwiseConv(d_model=3, kernel=4)
