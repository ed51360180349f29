"""Every pre-norm layer of the reference is a MetaFormer: built again from its own parts, it gives the same numbers.

The layers are found in the models, and their parts in what they call, so that a new family needs nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from parity_tests.families import FAMILIES
from parity_tests.harness.case import Case, reads, reference
from parity_tests.harness.compare import BAR, largest_relative
from parity_tests.harness.ours import read
from parity_tests.harness.record import Backend
from parity_tests.harness.shapes import unchecked
from parity_tests.torch_twins import vectors
from reference_impl.metaformer import MetaFormer, Residual
from reference_impl.mixer import MixerLayer, RankMixerLayer, TokenMixerLargeLayer, mix_heads
from reference_impl.models.transformer import TransformerConfig, TransformerEncoderLayer
from reference_impl.site import Site

VARIANTS = [(family, variant) for family, record in FAMILIES.items() for variant in record.variants]
SHIFTED = {"rwkv"}
"""Families whose channel mixer reads the token before as well."""


@dataclass(frozen=True)
class Called:
    """A part of a layer, what it was given, and what it gave."""

    name: str
    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def is_norm(self) -> bool:
        return type(self.module).__name__.endswith("Norm")


@dataclass(frozen=True)
class LayerRun:
    """One call of a layer: its parts in the order of their calls, its input and its output."""

    layer: nn.Module
    parts: list[Called]
    x: Tensor
    y: Tensor

    def taken_apart(self) -> tuple[list[nn.Module], list[Residual]] | None:
        """What comes before, and each Norm and Mixer as a Residual. None where the norms come after the residuals."""
        parts, before, halves = list(self.parts), [], []
        while len(parts) >= 2 and parts[0].is_norm and parts[1].is_norm:
            before.append(parts.pop(0).module)  # RWKV's first layer normalises the embedding
        while len(parts) >= 2 and parts[0].is_norm and not parts[1].is_norm:
            halves.append(Residual(parts.pop(0).module, self.bound(parts.pop(0))))
        return None if parts else (before, halves)

    def form(self) -> nn.Module | None:
        """The layer again: a MetaFormer, a Residual more or one less. None as above."""
        found = self.taken_apart()
        if found is None:
            return None
        before, halves = found
        if len(halves) == 1:  # one mixer for both
            return nn.Sequential(*before, *halves)
        *more, tokens, channels = halves  # a decoder that reads a memory mixes tokens twice
        whole = MetaFormer(
            token_norm=tokens.norm, token_mixer=tokens.mixer, channel_norm=channels.norm, channel_mixer=channels.mixer
        )
        return nn.Sequential(*before, *more, whole)

    def bound(self, part: Called) -> Callable[[Tensor], Tensor]:
        """A mixer with what it was given beside its input, and with the factors that the layer may have for what it adds."""
        scale = getattr(self.layer, f"{part.name}_scale", None)

        def mixer(x: Tensor) -> Tensor:
            y = part.module(x, *part.args[1:], **part.kwargs)
            return y if scale is None else scale[:, None, None] * y

        return mixer


@contextmanager
def watched(layers: dict[str, nn.Module]) -> Iterator[list[LayerRun]]:
    """Every call of these layers while the body runs. What drops is passed over: it is off."""
    runs: list[LayerRun] = []
    calls: dict[nn.Module, list[Called]] = {layer: [] for layer in layers.values()}
    handles = []

    def keep_part(layer: nn.Module, name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, y: Any) -> None:
            calls[layer].append(Called(name, module, args, kwargs))

        return hook

    def keep_layer(layer: nn.Module, args: Any, kwargs: Any, y: Tensor) -> None:
        runs.append(LayerRun(layer, calls[layer], args[0], y))
        calls[layer] = []

    for layer in layers.values():
        for name, part in layer.named_children():
            if not isinstance(part, Site) and not type(part).__name__.startswith("Drop"):
                handles.append(part.register_forward_hook(keep_part(layer, name), with_kwargs=True))
        handles.append(layer.register_forward_hook(keep_layer, with_kwargs=True))
    try:
        yield runs
    finally:
        for handle in handles:
            handle.remove()


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """The members of every list `layers`, also of those that are lists of lists."""
    found = {name: m for name, m in model.named_modules() if re.fullmatch(r"(.*\.)?layers(\.\d+)+", name)}
    return {name: m for name, m in found.items() if not isinstance(m, nn.Sequential)}


def runs_of(family: str, variant: str) -> list[LayerRun]:
    case = Case(family, variant, "f64", Backend(""))
    model, layers = reference(case), layers_of(reference(case))
    with unchecked(), torch.no_grad(), watched(layers) as runs:
        for batch in reads(case).standard()[:2]:
            read(model, batch.inputs)
    assert {id(run.layer) for run in runs} == {id(layer) for layer in layers.values()}
    assert runs, "a model without layers"
    return runs


@pytest.mark.parametrize(("family", "variant"), VARIANTS, ids=map("-".join, VARIANTS))
def test_layers_are_built_again_from_their_parts(family: str, variant: str) -> None:
    runs = runs_of(family, variant)
    if runs[0].form() is None:
        assert all(run.form() is None for run in runs)
        pytest.skip("post-LN: the norm comes after the residual, which is another form")
    with unchecked(), torch.no_grad():
        for run in runs:
            form = run.form()
            assert form is not None
            assert torch.equal(form(run.x), run.y)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_channel_mixer_has_each_token_by_itself(family: str) -> None:
    """Another first token, and nothing but that token's result is another. A token mixer would tell the rest."""
    run = runs_of(family, next(iter(FAMILIES[family].variants)))[-1]
    found = run.taken_apart()
    if found is None or len(found[1]) == 1:
        pytest.skip("no channel mixer by itself: post-LN, or one mixer for both")
    tokens, channels = found[1][0].mixer, found[1][-1].mixer  # without the norms, of which PoolFormer's sees the whole image
    x, other = run.x, run.x.clone()
    first = (slice(None), 0) if x.ndim == 3 else (slice(None), slice(None), 0, 0)
    other[first] += vectors("more", *x[first].shape)
    rest = torch.ones_like(x, dtype=torch.bool)
    rest[first] = False
    with unchecked(), torch.no_grad():
        assert largest_relative(channels(other)[first], channels(x)[first]) > BAR
        assert largest_relative(tokens(other)[rest], tokens(x)[rest]) > BAR
        by_itself = largest_relative(channels(other)[rest], channels(x)[rest]) < BAR
    assert by_itself != (family in SHIFTED)


# Layers of no family


LENGTH, D_MODEL = 6, 12


def filled(layer: nn.Module) -> Any:
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.copy_(vectors(name, *parameter.shape) / 4)
    return layer.double().eval()


def test_mlp_mixer() -> None:
    layer = filled(MixerLayer(length=LENGTH, d_model=D_MODEL, d_tokens=10, d_ff=20, norm_eps=1e-5))
    form = MetaFormer(
        token_norm=layer.token_norm, token_mixer=layer.tokens, channel_norm=layer.ffn_norm, channel_mixer=layer.ffn
    )
    x = vectors("mixed", 2, LENGTH, D_MODEL).double()
    assert torch.equal(form(x), layer(x))


def test_rank_mixer() -> None:
    layer = filled(RankMixerLayer(length=LENGTH, d_model=D_MODEL, d_ff=20, norm_eps=1e-5, norm_first=True))
    form = MetaFormer(
        token_norm=layer.mix_norm, token_mixer=mix_heads, channel_norm=layer.ffn_norm, channel_mixer=layer.ffn
    )
    x = vectors("mixed", 2, LENGTH, D_MODEL).double()
    assert torch.equal(form(x, LENGTH), layer(x))


def test_token_mixer_large() -> None:
    layer = filled(TokenMixerLargeLayer(length=LENGTH, d_model=D_MODEL, n_heads=4, d_ff=20, norm_eps=1e-5))

    def restored(x: Tensor) -> Tensor:
        return mix_heads(layer.mixed_ffn(mix_heads(x, 4)), LENGTH)

    form = MetaFormer(
        token_norm=layer.mix_norm, token_mixer=restored, channel_norm=layer.ffn_norm, channel_mixer=layer.ffn
    )
    x = vectors("mixed", 2, LENGTH, D_MODEL).double()
    assert torch.equal(form(x), layer(x))


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
def test_encoder_layer(norm_first: bool) -> None:
    """PyTorch's, whose two norm orders differ in just this: the post-LN one is no MetaFormer of its parts."""
    config = TransformerConfig(
        vocab_size=0,
        d_model=D_MODEL,
        n_encoder_layers=1,
        n_decoder_layers=0,
        n_heads=2,
        d_head=6,
        d_ff=20,
        norm_eps=1e-5,
        norm_first=norm_first,
        bias=True,
        activation="relu",
        dropout=0.1,
    )
    layer = filled(TransformerEncoderLayer(config))
    form = MetaFormer(
        token_norm=layer.attn_norm, token_mixer=layer.attn, channel_norm=layer.ffn_norm, channel_mixer=layer.ffn
    )
    x, visible = vectors("mixed", 2, LENGTH, D_MODEL).double(), torch.ones(1, 1, 1, LENGTH, dtype=torch.bool)
    assert torch.equal(form(x, visible), layer(x, visible)) is norm_first
