"""FNet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from parity_tests.families import beside, siblings
from parity_tests.families import transformer_deviations as shared
from parity_tests.families.deviations import bare_bias, each, forward_of
from parity_tests.families.units import block, only_hidden, output
from parity_tests.fixtures import fnet as tiny
from parity_tests.harness.batches import Reads
from parity_tests.harness.record import PUBLISHED, Arguments, Backend, Call, Deviation, Family, Site, Unit, in_layers
from reference_impl import initialisation
from reference_impl.fourier import FourierMixing
from reference_impl.heads import MLMHead
from reference_impl.models.fnet import FNetEmbedding, FNetLayer

HERE, THERE = "layers.{layer}.", "fnet.encoder.layer.{layer}."


def embedded(call: Call, seen: Mapping[str, Any]) -> Arguments:
    """Arguments of the embedding: ids, types, and positions, which count from 0 where they are not given."""
    ids, types = call.argument(0, "input_ids"), call.argument(1, "token_type_ids")
    positions = call.argument(2, "position_ids")
    return Arguments(ids, types, torch.arange(ids.shape[1], device=ids.device)[None] if positions is None else positions)


LAYER = (
    block(HERE + "mixer", THERE + "fourier.self"),
    block(HERE + "mixer_norm", THERE + "fourier.output.LayerNorm"),
    Unit(
        name=HERE + "ffn",
        hf=THERE + "intermediate",
        level="block",
        feed=only_hidden,
        sites=(Site("dropout", "b s f", lambda c: c.tensor),),  # of probability 0: what comes out of the activation
    ),
    block(HERE + "ffn.out_proj", THERE + "output.dense"),
    block(HERE + "ffn_norm", THERE + "output.LayerNorm"),
    Unit(name="layers.{layer}", hf="fnet.encoder.layer.{layer}", level="layer", feed=only_hidden, sites=(output("b s d"),)),
)


def units(config: Any) -> list[Unit]:
    return [
        block("embed.norm", "fnet.embeddings.LayerNorm"),
        Unit(name="embed", hf="fnet.embeddings", level="block", feed=embedded, sites=(output("b s d"),)),
        *in_layers(LAYER, config, config.n_layers),
        block("pooler", "fnet.pooler", axes="b d"),
        block("mlm_head.norm", "cls.predictions.transform.LayerNorm"),
        block("mlm_head", "cls", axes="b s v"),
        Unit(name="", hf="", label="logits", level="model", sites=(Site("", "b s v", lambda c: c.output["logits"]),)),
    ]


def reads(config: Any) -> Reads:
    return Reads(vocab_size=config.vocab_size, causal=False, padding=(), reach=config.max_positions, types=config.n_types)


# --- deviations ---


def transformed(how: Callable[[Tensor], Tensor]) -> Callable[[nn.Module], None]:
    """Mix by another transform."""
    return forward_of(FourierMixing, lambda self, x: how(x))


def _by_powers_of_two(x: Tensor) -> Tensor:
    """As a transform does that only knows such lengths: padded with zeros, and cut again."""
    lengths = [1 << (n - 1).bit_length() for n in x.shape[1:]]
    return torch.fft.fft2(x, s=lengths).real[:, : x.shape[1], : x.shape[2]]


MIXING: dict[str, Callable[[Tensor], Tensor]] = {
    "imaginary part instead of the real one": lambda x: torch.fft.fft2(x).imag,
    "magnitude instead of the real part": lambda x: torch.fft.fft2(x).abs(),
    "real part taken between the two transforms": lambda x: torch.fft.fft(torch.fft.fft(x, dim=2).real, dim=1).real,
    "transform over the tokens alone": lambda x: torch.fft.fft(x, dim=1).real,
    "transform over the channels alone": lambda x: torch.fft.fft(x, dim=2).real,
    "transform over the batch too": lambda x: torch.fft.fftn(x).real,
    "transform that keeps the norm": lambda x: torch.fft.fft2(x, norm="ortho").real,
    "lengths padded to powers of two": _by_powers_of_two,
}


def _added(*parts: str) -> Callable[[nn.Module], None]:
    """Embed by some of token, type and position alone."""

    def forward(self: FNetEmbedding, ids: Tensor, types: Tensor, positions: Tensor) -> Tensor:
        vectors = {"token": self.tokens(ids), "type": self.types(types), "position": self.positions(positions)}
        x: Any = sum(vectors[part] for part in parts)
        return self.proj(self.norm(x))

    return forward_of(FNetEmbedding, forward)


def _projected_first(self: FNetEmbedding, ids: Tensor, types: Tensor, positions: Tensor) -> Tensor:
    return self.norm(self.proj(self.tokens(ids) + self.types(types) + self.positions(positions)))


def _pre_norm(self: FNetLayer, x: Tensor) -> Tensor:
    z = x + self.mixer(self.mixer_norm(x))
    return z + self.ffn(self.ffn_norm(z))


def _mixed_alone(self: FNetLayer, x: Tensor) -> Tensor:
    z = self.mixer_norm(self.mixer(x))
    return self.ffn_norm(z + self.ffn(z))


def _around_both(self: FNetLayer, x: Tensor) -> Tensor:
    z = self.mixer_norm(x + self.mixer(x))
    return self.ffn_norm(x + self.ffn(z))


def _without(name: str) -> Callable[[Any], None]:
    """Let a part pass its input on."""
    return lambda module: setattr(module, name, nn.Identity())


FAMILY = Family(
    name="fnet",
    hf_class="FNetForMaskedLM",
    inert={"*tpu_*": "how the transform is computed; by matrices, it takes sequences of one length alone"},
    variants=tiny.VARIANTS,
    initial=initialisation.encoder,
    alone=(PUBLISHED,),
    units=units,
    reads=reads,
    caches=(),
    backends=(Backend("eager", precisions=("f64", "f32")),),  # there is no attention, and no transform in half precision
    beside=(beside.hidden_states(),),
    siblings=siblings.encoders("FNet", "", "dropout"),
    deviations=(
        *shared.layer_norm("embed.norm", configured=True),
        *(Deviation(name=name, site="mixer", apply=transformed(how)) for name, how in MIXING.items()),
        Deviation(name="token types are not added", site="embed", apply=_added("token", "position")),
        Deviation(name="positions are not added", site="embed", apply=_added("token", "type")),
        Deviation(name="the embedding is not projected", site="embed", apply=each(FNetEmbedding, _without("proj"))),
        Deviation(
            name="the embedding is projected before its norm", site="embed", apply=forward_of(FNetEmbedding, _projected_first)
        ),
        *shared.ffn(inner="ffn.dropout", output="ffn.out_proj", erf=("prime",), others=("base", "odd", "untied", "relu")),
        Deviation(name="norm before the block and not after it", site="layer", apply=forward_of(FNetLayer, _pre_norm)),
        Deviation(name="the mixer has no residual", site="layer", apply=forward_of(FNetLayer, _mixed_alone)),
        Deviation(name="both residuals begin at the layer's input", site="layer", apply=forward_of(FNetLayer, _around_both)),
        Deviation(name="no norm before the head's decoder", site="mlm_head.norm", apply=each(MLMHead, _without("norm"))),
        Deviation(name="bias of the head dropped", site="mlm_head", apply=each(MLMHead, bare_bias("decoder"))),
    ),
)
