"""Mamba."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity_tests.families import beside, siblings
from parity_tests.families import deviations as shared
from parity_tests.families.deviations import bare_bias, constant, each, forward_of
from parity_tests.families.recurrent_deviations import forgetting
from parity_tests.families.units import block, hidden, output
from parity_tests.fixtures import mamba as tiny
from parity_tests.harness.batches import Reads
from parity_tests.harness.record import (
    PUBLISHED,
    Arguments,
    Backend,
    Call,
    Deviation,
    Family,
    Known,
    Site,
    Unit,
    in_layers,
)
from reference_impl import initialisation
from reference_impl.mamba import STATE, MambaMixer
from reference_impl.models.mamba import MambaLayer, MambaModel
from reference_impl.recurrence import LayerState

HERE, THERE = "layers.{layer}.mixer", "backbone.layers.{layer}.mixer"


def masked(call: Call, seen: Mapping[str, Any]) -> Arguments:
    """Arguments of a mixer or of a whole layer: hidden states, what of them is real, an empty state."""
    mask = call.argument(3, "attention_mask")
    return Arguments(hidden(call), None if mask is None else mask.bool(), LayerState(STATE))


def kept(place: int) -> Callable[[Call], Tensor | None]:
    """A part of the state of a layer, after the call."""
    return lambda call: None if call.cached is None else call.cached[place]


def _mixer(site: Site) -> Unit:
    """The mixer, as far as one value of it."""
    return Unit(name=HERE, hf=THERE, level="block", feed=masked, sites=(site,))


LAYER = (
    block("layers.{layer}.norm", "backbone.layers.{layer}.norm"),
    block(HERE + ".in_proj", THERE + ".in_proj", axes="b s f"),
    _mixer(Site("inputs", "b f w", kept(0))),
    block(HERE + ".x_proj", THERE + ".x_proj", axes="b s f"),
    _mixer(Site("memory", "b f n", kept(1))),
    _mixer(output("b s d")),
    Unit(name="layers.{layer}", hf="backbone.layers.{layer}", level="layer", feed=masked, sites=(output("b s d"),)),
)


def units(config: Any) -> list[Unit]:
    return [
        block("embed", "backbone.embeddings"),
        *in_layers(LAYER, config, config.n_layers),
        block("norm", "backbone.norm_f"),
        block("lm_head", "lm_head", axes="b s v"),
        Unit(name="", hf="", label="logits", level="model", sites=(Site("", "b s v", lambda c: c.output["logits"]),)),
    ]


# --- deviations ---


def in_turn(*functions: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """One function at the first call, the next at the second, and so on, and round again."""
    calls: list[None] = []

    def call(*args: Any) -> Tensor:
        calls.append(None)
        return functions[(len(calls) - 1) % len(functions)](*args)

    return call


def _passed_on(x: Tensor, *rest: Any) -> Tensor:
    return x


def _activations(behind_conv: Callable[[Any], Any], of_gate: Callable[[Any], Any]) -> Callable[[Any], None]:
    return lambda mixer: setattr(mixer, "activation", in_turn(behind_conv(mixer), of_gate(mixer)))


def _own(mixer: MambaMixer) -> Callable[..., Tensor]:
    return mixer.activation


def _reordered(name: str, pieces: Callable[[MambaMixer], tuple[int, ...]], order: tuple[int, ...]) -> Callable[[Any], None]:
    """The rows of a projection in another order of its pieces."""

    def change(mixer: MambaMixer) -> None:
        projection = getattr(mixer, name)
        for part, parameter in list(projection.named_parameters()):
            split = parameter.detach().split(pieces(mixer))
            setattr(projection, part, nn.Parameter(torch.cat([split[i] for i in order]), requires_grad=False))

    return change


def _halves(mixer: MambaMixer) -> tuple[int, ...]:
    return (mixer.in_proj.out_features // 2,) * 2


def _parameter(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    def apply(mixer: MambaMixer) -> None:
        path, _, last = name.rpartition(".")
        holder = mixer.get_submodule(path)
        setattr(holder, last, nn.Parameter(change(getattr(holder, last).detach()), requires_grad=False))

    return apply


def _looking_ahead(mixer: MambaMixer) -> None:
    forward = mixer.conv.forward
    mixer.conv.forward = lambda input: F.pad(forward(input)[..., 1:], (0, 1))


def _step(function: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    """Another function in place of softplus."""

    def change(mixer: MambaMixer) -> None:
        mixer.step = lambda low: function(F.linear(low, mixer.dt_proj.weight, mixer.dt_proj.bias))

    return change


def _shown_behind(mixer: MambaMixer) -> None:
    mixer.hide = in_turn(MambaMixer.hide, _passed_on)


def _hidden_too_early(mixer: MambaMixer) -> None:
    """What is projected is nothing, and so the convolution reads the projection's bias."""

    def nothing_projected(x: Tensor, real: Tensor | None) -> Tensor:
        return x if real is None else torch.where(real[..., None], x, mixer.in_proj.bias[: x.shape[-1]])

    mixer.hide = in_turn(nothing_projected, MambaMixer.hide)


def _normed_residual(self: MambaLayer, x: Tensor, real: Any = None, cache: Any = None) -> Tensor:
    x = self.norm(x)
    return x + self.mixer(x, real, cache)


def _post_norm(self: MambaLayer, x: Tensor, real: Any = None, cache: Any = None) -> Tensor:
    return self.norm(x + self.mixer(x, real, cache))


def _beginning_anew(*parts: str) -> Callable[[Any], None]:
    """Several tokens at once find nothing of these parts of the state."""

    def change(model: MambaModel) -> None:
        forward = model.forward

        def anew(ids: Tensor, *, cache: Any = None, **given: Any) -> Tensor:
            for layer in cache.layers if cache is not None and ids.shape[1] > 1 else ():
                layer.parts = {name: value for name, value in layer.parts.items() if name not in parts}
            return forward(ids, cache=cache, **given)

        model.forward = anew

    return change


PLAIN = ("base", "untied")
"""Variants in which transformers does not differ."""


def of_mixer(name: str, site: str, change: Callable[[Any], None], variants: tuple[str, ...] = PLAIN) -> Deviation:
    return Deviation(name=name, site=site, apply=each(MambaMixer, change), variants=variants)


MIXER = (
    of_mixer("x and z swapped", "mixer.in_proj", _reordered("in_proj", _halves, (1, 0))),
    of_mixer("b and c swapped", "mixer.x_proj", _reordered("x_proj", lambda m: m.sizes, (0, 2, 1))),
    of_mixer("dt behind b and c", "mixer.x_proj", _reordered("x_proj", lambda m: m.sizes, (1, 2, 0))),
    of_mixer("convolution sees one token ahead", "mixer.memory", _looking_ahead),
    of_mixer("convolution runs backwards", "mixer.memory", _parameter("conv.weight", lambda w: w.flip(-1))),
    of_mixer("bias of the convolution dropped", "mixer.memory", bare_bias("conv")),
    of_mixer("no activation behind the convolution", "mixer.memory", _activations(lambda _: _passed_on, _own)),
    of_mixer("relu for softplus", "mixer.memory", _step(torch.relu)),
    of_mixer("dt without its bias", "mixer.memory", _parameter("dt_proj.bias", torch.zeros_like)),
    of_mixer("A_log exponentiated once more", "mixer.memory", _parameter("a_log", torch.exp)),
    of_mixer("what passes the state by is left out", "mixer", _parameter("d", torch.zeros_like)),
    of_mixer("the gate has no activation", "mixer", _activations(_own, lambda _: _passed_on)),
    of_mixer("the gate is SiLU", "mixer", _activations(_own, lambda _: F.silu), ("gelu",)),
    of_mixer("padding shows behind the convolution", "mixer.memory", _shown_behind),
    of_mixer("padding is hidden before the projection", "mixer.inputs", _hidden_too_early, ("biased",)),
)

OF_MAMBA_2 = "for Mamba-2 mended by https://github.com/huggingface/transformers/pull/46084"

FAMILY = Family(
    name="mamba",
    hf_class="MambaForCausalLM",
    inert={
        "use_mambapy": "another way to compute the scan, of a package",
        "use_associative_scan": "another way to compute the scan, under torch.compile",
    },
    variants=tiny.VARIANTS,
    initial=initialisation.mamba,
    alone=(PUBLISHED,),
    units=units,
    reads=lambda config: Reads(vocab_size=config.vocab_size, positions=False),
    caches=("dynamic",),
    holds=("b f w", "b f n"),
    backends=(Backend("eager"),),
    beside=(beside.AFTER_LAYERS,),
    siblings=siblings.bare("Mamba", "norm"),
    known=(
        Known(
            name="several tokens on a state raise, unless they are as many as the convolution is wide",
            sites=("dynamic.chunks", "dynamic.chunks.held"),
            until="5.15.0",
            link=OF_MAMBA_2,
            raises="IndexError",
        ),
        Known(
            name="several tokens on a state find no memory",
            smallest="six tokens, then five on the state",
            sites=("dynamic.chunks", "dynamic.chunks.held"),
            since="5.15.0",
            link=OF_MAMBA_2,
            explained="several tokens on a state find no memory",
        ),
        Known(
            name="beams that change places leave their states behind",
            smallest="`num_beams=3`",
            sites=(
                "settings.num_beams",
                "settings.num_return_sequences",
                "settings.length_penalty",
                "settings.early_stopping.never",
                "settings.as-translations",
            ),
            until="5.13.0",
            link="measured, release by release",
            unexplained="which beam's state a text goes on with is not the model's, but of how beams are searched",
        ),
        Known(
            name="steps after a prompt that is shorter than the convolution go wrong in every row but the first",
            smallest="two rows of one token",
            sites=("settings.forced_bos_token_id", "settings.begin_suppress_tokens.forced_bos", "settings.as-summaries"),
            until="5.4.0",
            unexplained="rows of a batch differ in it, and the reference has no rows that do",
            link="measured, release by release: two rows of one or two tokens, conv_kernel 4",
        ),
        Known(
            name="the memory is kept in half precision",
            sites=("mixer.memory", "dynamic.steps.held"),
            until="5.14.0",
            precisions=("bf16", "f16"),
            link="measured: float32 from 5.14.0 on",
            unexplained="it is one of rounding, which no deviation in float64 shows",
        ),
        Known(
            name="the decays stay in float32 when the model is cast",
            sites=("cast",),
            until="5.3.0",
            precisions=("bf16", "f16"),
            link="measured, release by release",
            unexplained="it is one of rounding, which no deviation in float64 shows",
        ),
        Known(
            name="the gate is SiLU whatever hidden_act says",
            smallest='`hidden_act="gelu"`',
            sites=("mixer",),
            since="5.15.0",
            where=lambda config: config.activation != "silu",
            link="https://github.com/huggingface/transformers/pull/47630",
            explained="the gate is SiLU",
        ),
        Known(
            name="what padding is projected to, a bias, reaches the convolution",
            smallest="`use_bias=True`, a row padded on the left",
            sites=("mixer.inputs",),
            since="5.15.0",
            where=lambda config: config.bias,
            link="https://github.com/huggingface/transformers/pull/47630",
            explained="padding is hidden before the projection",
        ),
    ),
    deviations=(
        *(replace(deviation, site="norm", variants=PLAIN) for deviation in shared.RMS_NORM),
        *MIXER,
        *(
            Deviation(name=name, site=site, apply=apply, variants=PLAIN)
            for name, site, apply in (
                ("the residual is normed too", "layer", forward_of(MambaLayer, _normed_residual)),
                ("norm after the residual", "layer", forward_of(MambaLayer, _post_norm)),
                ("no norm before the head", "norm", each(MambaModel, constant("norm", nn.Identity()))),
                ("several tokens on a state begin from none", "dynamic.chunks", _beginning_anew(*STATE)),
                ("several tokens on a state find no memory", "dynamic.chunks", _beginning_anew("memory")),
                ("the inputs of the convolution begin anew at each call", "cache", forgetting(STATE, "inputs")),
                ("the memory begins anew at each call", "cache", forgetting(STATE, "memory")),
            )
        ),
    ),
)
