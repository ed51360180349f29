"""The packages that R2 builds its mini-LLaMA from, and MLP-Mixer's, as twins in float64. They are optional."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from parity_tests.fixtures.values import around_one
from parity_tests.harness.compare import BAR, largest_relative
from parity_tests.torch_twins import filled, vectors
from reference_impl.mixer import MixerLayer
from reference_impl.norm import RMSNorm
from reference_impl.position import RopeConfig, RotaryEmbedding, rotate_halves, rotate_pairs
from reference_impl.rope_scaling import Linear, Unscaled


def package(name: str) -> Any:
    """An optional package; the test is skipped without it."""
    return pytest.importorskip(name, reason=f"{name} is not installed: it comes with pip install '.[twins]'")


# --- rotary-embedding-torch ---


@pytest.mark.parametrize("first", [0, 37])
@pytest.mark.parametrize("theta", [10000.0, 500.0])
def test_rotate_queries_or_keys_is_rotate_pairs(theta: float, first: int) -> None:
    twin = package("rotary_embedding_torch").RotaryEmbedding(dim=12, theta=theta).double()
    rope = RotaryEmbedding(RopeConfig(theta=theta, width=12, pairing="pairs", scaling=Unscaled()))
    x = vectors("rotated", 2, 3, 29, 12).double()
    tables = rope(torch.arange(first, first + 29)[None], torch.float64)
    theirs = twin.rotate_queries_or_keys(x, offset=first)
    assert largest_relative(theirs, rotate_pairs(x, *tables)) < BAR
    assert largest_relative(theirs, rotate_halves(x, *tables)) > 0.1


def test_interpolate_factor_is_linear_scaling() -> None:
    twin = package("rotary_embedding_torch").RotaryEmbedding(dim=12, interpolate_factor=4.0).double()
    rope = RotaryEmbedding(RopeConfig(theta=10000.0, width=12, pairing="pairs", scaling=Linear(factor=4.0)))
    x = vectors("rotated", 2, 3, 29, 12).double()
    tables = rope(torch.arange(29)[None], torch.float64)
    assert largest_relative(twin.rotate_queries_or_keys(x), rotate_pairs(x, *tables)) < BAR


def test_calling_the_module_as_r2_does_rotates_nothing() -> None:
    """R2, 4.1 has `self.rope(q)[:, :, :, :, 0]`. Called, the module takes q for positions and gives their angles;
    those of the first frequency, which is 1, are q itself.
    """
    twin = package("rotary_embedding_torch").RotaryEmbedding(dim=12)
    q = vectors("rotated", 2, 3, 29, 12)
    assert torch.equal(twin(q)[:, :, :, :, 0], q)
    assert not torch.equal(twin.rotate_queries_or_keys(q), q)


# --- x-transformers ---


def norms(eps: float) -> tuple[Any, RMSNorm]:
    """x-transformers' RMSNorm, x / |x| * sqrt(d) * g, and ours with the same weight."""
    twin, mine = package("x_transformers").RMSNorm(45), RMSNorm(45, eps)
    weight = around_one("weight", (45,))
    twin.load_state_dict({"g": weight})
    mine.load_state_dict({"weight": weight})
    return twin.double(), mine.double()


def test_x_transformers_rms_norm_is_ours_without_eps() -> None:
    twin, mine = norms(eps=0.0)
    x = vectors("normed", 3, 7, 45).double() * torch.tensor([1.0, 1e-3, 1e3])[:, None, None]
    assert largest_relative(twin(x), mine(x)) < BAR


def test_without_eps_it_is_another_norm_where_the_input_is_small() -> None:
    twin, llama = norms(eps=1e-5)
    x = vectors("normed", 7, 45).double()
    assert largest_relative(twin(x), llama(x)) < 1e-4
    assert largest_relative(twin(x * 1e-3), llama(x * 1e-3)) > 1


# --- mlp-mixer-pytorch ---

NAMES = {
    "0.norm": "token_norm",
    "0.fn.0": "tokens.ffn.in_proj",
    "0.fn.3": "tokens.ffn.out_proj",
    "1.norm": "ffn_norm",
    "1.fn.0": "ffn.in_proj",
    "1.fn.3": "ffn.out_proj",
}


def test_mixer_layer() -> None:
    model = package("mlp_mixer_pytorch").MLPMixer(
        image_size=(12, 20), channels=3, patch_size=4, dim=22, depth=2, num_classes=5, expansion_factor=1.5
    )
    twin = filled(model[3], "f64")  # the second of two, of 15 patches
    mine = MixerLayer(length=15, d_model=22, d_tokens=33, d_ff=11, norm_eps=1e-5).double()
    weights = {}
    for name, t in twin.state_dict().items():
        place, _, part = name.rpartition(".")
        weights[f"{NAMES[place]}.{part}"] = t.squeeze(-1) if place.startswith("0.fn") else t  # a Conv1d of kernel 1
    mine.load_state_dict(weights)
    for scale in (1.0, 1e-3):
        x = vectors("patches", 2, 15, 22).double() * scale
        assert largest_relative(twin(x), mine(x)) < BAR


@pytest.mark.parametrize("length", [14, 16])
def test_a_mixer_of_another_length_is_a_clear_error(length: int) -> None:
    layer = MixerLayer(length=15, d_model=22, d_tokens=33, d_ff=11, norm_eps=1e-5)
    with pytest.raises(ValueError, match=f"weights are for 15 tokens, and {length} came"):
        layer(vectors("patches", 1, length, 22))
