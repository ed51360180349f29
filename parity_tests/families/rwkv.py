"""RWKV-4."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from parity_tests.families import beside, siblings
from parity_tests.families import transformer_deviations as shared
from parity_tests.families.deviations import constant, each, forward_of
from parity_tests.families.recurrent_deviations import forgetting
from parity_tests.families.units import block, hidden, output
from parity_tests.fixtures import rwkv as tiny
from parity_tests.harness.batches import Batch, Reads
from parity_tests.harness.record import (
    FORWARD,
    FOUND_HERE,
    PUBLISHED,
    Arguments,
    Backend,
    Beside,
    Call,
    Deviation,
    Family,
    Known,
    Site,
    Unit,
    in_layers,
)
from reference_impl import initialisation, rwkv
from reference_impl.models.rwkv import RwkvLayer, RwkvModel
from reference_impl.recurrence import LayerState
from reference_impl.rwkv import STATE, ChannelMixing, Shift, TimeMixing, one_earlier

HERE, THERE = "layers.{layer}.", "rwkv.blocks.{layer}."


def stateless(call: Call, seen: Mapping[str, Any]) -> Arguments:
    """Arguments of a mixer or of a whole layer: hidden states, an empty state."""
    return Arguments(hidden(call), LayerState(STATE))


def kept(place: int) -> Callable[[Call], Tensor | None]:
    """A part of the state of a layer, after the call."""
    return lambda call: None if call.cached is None else call.cached[place]


LAYER = (
    block(HERE + "embed_norm", THERE + "pre_ln", where=lambda config, layer: layer == 0),
    block(HERE + "time_norm", THERE + "ln1"),
    block(HERE + "time.k_proj", THERE + "attention.key", axes="b s f"),
    block(HERE + "time.v_proj", THERE + "attention.value", axes="b s f"),
    block(HERE + "time.r_proj", THERE + "attention.receptance", axes="b s f"),
    Unit(
        name=HERE + "time",
        hf=THERE + "attention",
        level="block",
        feed=stateless,
        sites=(
            Site("numerator", "b f", kept(2)),
            Site("denominator", "b f", kept(3)),
            Site("largest", "b f", kept(4)),
            output("b s d"),
        ),
    ),
    block(HERE + "channel_norm", THERE + "ln2"),
    Unit(name=HERE + "channel", hf=THERE + "feed_forward", level="block", feed=stateless, sites=(output("b s d"),)),
    Unit(name="layers.{layer}", hf="rwkv.blocks.{layer}", level="layer", feed=stateless, sites=(output("b s d"),)),
)


def units(config: Any) -> list[Unit]:
    return [
        block("embed", "rwkv.embeddings"),
        *in_layers(LAYER, config, config.n_layers),
        block("norm", "rwkv.ln_out"),
        block("lm_head", "head", axes="b s v"),
        Unit(name="", hf="", label="logits", level="model", sites=(Site("", "b s v", lambda c: c.output["logits"]),)),
    ]


TIME_MIXED = Beside(
    name="attentions",
    sites=lambda units: [unit.name for unit in units if unit.name.endswith(".time")],
    axes="b s d",
    switch="output_attentions",
)
"""What the token mixers give: there are no probabilities."""


class Alone(Reads):
    """Pieces of a text are read in a batch of one: in a larger one, transformers mixes the rows, see `KNOWN`."""

    def cached(self) -> list[Batch]:
        return [self.batch("cache", (1, 19))]


BEAMS = tuple(
    f"settings.{name}"
    for name in "num_beams num_return_sequences length_penalty early_stopping.never as-summaries as-translations".split()
)

KNOWN = (
    Known(
        name="time_first begins as ones in every channel, and not around log 0.3",
        smallest="`RwkvForCausalLM(RwkvConfig())`",
        sites=("initial.time.first",),
        link=FOUND_HERE,
        unexplained="what parameters begin as is no part of a forward",
    ),
    Known(
        name="beams that change places leave their states behind",
        smallest="`num_beams=3`",
        sites=BEAMS,
        until="5.13.0",
        link="measured, release by release",
        unexplained="which beam's state a text goes on with is not the model's, but of how beams are searched",
    ),
    Known(
        name="beams are refused: the state cannot be reordered",
        sites=(*BEAMS, "settings.early_stopping"),
        since="5.13.0",
        raises="ValueError",
        link="measured, release by release: ValueError",
    ),
    Known(
        name="the state is as wide as d_model whatever attention_hidden_size says",
        smallest="`attention_hidden_size=32`, two tokens one by one",
        sites=(FORWARD,),
        where=lambda config: config.d_inner != config.d_model,
        link="measured: right without a state",
        raises="RuntimeError",
    ),
    Known(
        name="a step of one token mixes each row with the last tokens of the others",
        smallest="two rows, six tokens, then one on the state",
        sites=("greedy", "eos"),
        link="measured: logits (b, b, v) for tokens (b, 1)",
        unexplained="what comes out has another shape than any model of a batch gives",
    ),
    Known(
        name="the last norm's eps is 1e-5",
        sites=("norm",),
        where=lambda config: config.norm_eps != 1e-5,
        precisions=("f64", "f32"),
        link="measured",
        explained="eps of the last norm is 1e-5 whatever the config says",
    ),
    Known(
        name="weights are divided in place, and so have other gradients",
        smallest="a forward in evaluation mode, save, load: divided twice (`rescale_every`)",
        sites=("gradients", "step"),
        where=lambda config: config.halvings(config.n_layers - 1) > 0,
        link="by design",
        unexplained="the gradients are those of other parameters, which are the reference's over a power of two",
    ),
)

# --- deviations ---


def _mean(change: Callable[..., tuple[Tensor, Any]]) -> Callable[[Any], None]:
    """Another way to weigh what came before: a function of `wkv` and its arguments."""

    def apply(mixer: TimeMixing) -> None:
        mixer.__dict__["mean"] = lambda *arguments: change(rwkv.wkv, *arguments)

    return apply


def _own_decays(wkv: Any, k: Tensor, v: Tensor, decay: Tensor, first: Tensor, sums: Any) -> tuple[Tensor, Any]:
    return wkv(k, v, decay, first + decay, sums)


def _not_first(wkv: Any, k: Tensor, v: Tensor, decay: Tensor, first: Tensor, sums: Any) -> tuple[Tensor, Any]:
    return wkv(k, v, decay, torch.zeros_like(first), sums)


def _one_step_more(wkv: Any, k: Tensor, v: Tensor, decay: Tensor, first: Tensor, sums: Any) -> tuple[Tensor, Any]:
    """What is one token away has decayed once already; the same sums are kept as ever, times a constant."""
    y, _ = wkv(k, v, decay, first - decay, sums)
    return y, wkv(k, v, decay, first, sums)[1]


def _rising(wkv: Any, k: Tensor, v: Tensor, decay: Tensor, first: Tensor, sums: Any) -> tuple[Tensor, Any]:
    return wkv(k, v, -decay, first, sums)


def _summed(wkv: Any, k: Tensor, v: Tensor, decay: Tensor, first: Tensor, sums: Any) -> tuple[Tensor, Any]:
    """Weighted, and not divided by the sum of the weights."""
    (num, _, top), y = sums, []
    for now, value in zip(k.unbind(1), v.unbind(1), strict=True):
        y.append(torch.exp(top) * num + torch.exp(now + first) * value)
        num, top = torch.exp(top + decay) * num + torch.exp(now) * value, torch.zeros_like(top)
    return torch.stack(y, 1), wkv(k, v, decay, first, sums)[1]


def _by_sigmoid(wkv: Any, k: Tensor, v: Tensor, decay: Tensor, first: Tensor, sums: Any) -> tuple[Tensor, Any]:
    return wkv(k, v, -torch.sigmoid((-decay).log()), first, sums)


def _parts_swapped(one: str, other: str) -> Callable[[Any], None]:
    def change(mixer: nn.Module) -> None:
        first, second = getattr(mixer, one), getattr(mixer, other)
        setattr(mixer, one, second)
        setattr(mixer, other, first)

    return change


def _mirrored(self: Shift, x: Tensor, before: Tensor) -> Tensor:
    return x * (1 - self.weight) + before * self.weight


def _unshifted(self: Shift, x: Tensor, before: Tensor) -> Tensor:
    return x


def _around(self: Shift, x: Tensor, before: Tensor) -> Tensor:
    return x * self.weight + x.roll(1, 1) * (1 - self.weight)


def _ungated(mixer: TimeMixing) -> None:
    """sigmoid of something large is 1."""
    mixer.r_proj.forward = lambda input: torch.full((*input.shape[:-1], mixer.r_proj.out_features), 40.0).to(input)


def _of_time(name: str, site: str, change: Callable[[Any], None]) -> Deviation:
    return Deviation(name=name, site=site, apply=each(TimeMixing, change), variants=PLAIN)


def _relu_alone(self: ChannelMixing, x: Tensor, cache: Any = None) -> Tensor:
    before = one_earlier(x, torch.zeros_like(x[:, 0]))
    k = torch.relu(self.k_proj(self.k_shift(x, before)))
    return torch.sigmoid(self.r_proj(self.r_shift(x, before))) * self.v_proj(k)


def _channel_ungated(self: ChannelMixing, x: Tensor, cache: Any = None) -> Tensor:
    before = one_earlier(x, torch.zeros_like(x[:, 0]))
    return self.v_proj(torch.relu(self.k_proj(self.k_shift(x, before))).square())


def _parallel(self: RwkvLayer, x: Tensor, cache: Any = None) -> Tensor:
    x = x if self.embed_norm is None else self.embed_norm(x)
    return x + self.time(self.time_norm(x), cache) + self.channel(self.channel_norm(x), cache)


def _embedding_kept(self: RwkvLayer, x: Tensor, cache: Any = None) -> Tensor:
    """The first norm feeds the mixers alone, and not the residual."""
    normed = x if self.embed_norm is None else self.embed_norm(x)
    z = x + self.time(self.time_norm(normed), cache)
    return z + self.channel(self.channel_norm(z), cache)


def _never_halved(root: nn.Module) -> None:
    for kind in (TimeMixing, ChannelMixing):
        each(kind, constant("halvings", 0))(root)


def _last_eps(model: RwkvModel) -> None:
    model.norm.eps = 1e-5


PLAIN = ("base", "tied")
"""Variants in which transformers does not differ but by its steps."""

FAMILY = Family(
    name="rwkv",
    hf_class="RwkvForCausalLM",
    inert={"context_length": "how far a kernel reaches"},
    variants=tiny.VARIANTS,
    initial=initialisation.rwkv,
    alone=(PUBLISHED,),
    units=units,
    reads=lambda config: Alone(vocab_size=config.vocab_size, positions=False, padding=()),
    caches=("dynamic",),
    holds=("b d", "b d", "b f", "b f", "b f"),
    backends=(Backend("eager"),),
    beside=(beside.AFTER_LAYERS, TIME_MIXED),
    siblings=siblings.bare("Rwkv", "norm"),
    known=KNOWN,
    deviations=(
        *(replace(deviation, variants=PLAIN) for deviation in shared.layer_norm("embed_norm", configured=False)),
        Deviation(
            name="eps of the last norm is 1e-5 whatever the config says",
            site="norm",
            apply=each(RwkvModel, _last_eps),
            variants=("eps",),
        ),
        _of_time("keys and values swapped", "time.k_proj", _parts_swapped("k_proj", "v_proj")),
        _of_time("keys and receptances swapped", "time.k_proj", _parts_swapped("k_proj", "r_proj")),
        _of_time("shifts of keys and values swapped", "time.numerator", _parts_swapped("k_shift", "v_shift")),
        _of_time("what is here decays too", "time", _mean(_own_decays)),
        _of_time("what is here counts like what was before", "time", _mean(_not_first)),
        _of_time("what is one token away has decayed already", "time", _mean(_one_step_more)),
        _of_time("weights rise with distance", "time.numerator", _mean(_rising)),
        _of_time("decay is the sigmoid of what is stored", "time.numerator", _mean(_by_sigmoid)),
        _of_time("a sum in place of the mean", "time", _mean(_summed)),
        _of_time("the time mixing is not gated", "time.r_proj", _ungated),
        *(
            Deviation(name=name, site=site, apply=apply, variants=PLAIN)
            for name, site, apply in (
                ("mu weighs the token before", "time.numerator", forward_of(Shift, _mirrored)),
                ("no shift", "time.numerator", forward_of(Shift, _unshifted)),
                ("the last token comes before the first", "time.numerator", forward_of(Shift, _around)),
                ("relu is not squared", "channel", forward_of(ChannelMixing, _relu_alone)),
                ("the channel mixing is not gated", "channel", forward_of(ChannelMixing, _channel_ungated)),
                ("both mixings in parallel", "layer", forward_of(RwkvLayer, _parallel)),
                ("the residual begins before the first norm", "layer", forward_of(RwkvLayer, _embedding_kept)),
                ("no norm before the head", "norm", each(RwkvModel, constant("norm", nn.Identity()))),
                ("the mixers forget the token before at each call", "cache", forgetting(STATE, "time_input", "channel_input")),
                ("the sums begin anew at each call", "cache", forgetting(STATE, *STATE[2:])),
            )
        ),
        Deviation(
            name="what later layers add is not halved",
            site="time",
            apply=_never_halved,
            variants=("halved",),
        ),
    ),
)
