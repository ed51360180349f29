"""PoolFormer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity_tests.families import siblings
from parity_tests.families.deviations import bare_bias, constant, each, forward_of
from parity_tests.families.units import block, output
from parity_tests.fixtures import poolformer as tiny
from parity_tests.fixtures.values import integers
from parity_tests.harness.batches import Batch, Reads
from parity_tests.harness.record import PUBLISHED, Backend, Beside, Deviation, Family, Site, Unit
from reference_impl import initialisation
from reference_impl.ffn import gelu_tanh
from reference_impl.models.poolformer import ConvFFN, PoolFormerLayer, PoolFormerModel, scaled
from reference_impl.norm import ImageNorm
from reference_impl.pooling import PoolMixing

HERE, THERE = "layers.{stage}.{layer}.", "poolformer.encoder.block.{stage}.{layer}."

LAYER = (
    block(HERE + "mixer_norm", THERE + "before_norm", axes="b d y x"),
    block(HERE + "mixer", THERE + "pooling", axes="b d y x"),
    block(HERE + "ffn_norm", THERE + "after_norm", axes="b d y x"),
    block(HERE + "ffn", THERE + "output", axes="b d y x"),
    Unit(
        name="layers.{stage}.{layer}",
        hf="poolformer.encoder.block.{stage}.{layer}",
        level="layer",
        feed=block("", "").feed,
        sites=(output("b d y x"),),
    ),
)


def units(config: Any) -> list[Unit]:
    found = []
    for stage, depth in enumerate(config.depths):
        embed = f"poolformer.encoder.patch_embeddings.{stage}"
        found.append(block(f"embeds.{stage}", embed, axes="b d y x"))
        found += [unit.at(layer, stage=stage) for layer in range(depth) for unit in LAYER]
    return [
        *found,
        block("norm", "norm", axes="b d y x"),
        block("classifier", "classifier", axes="b k"),
        Unit(name="", hf="", label="logits", level="model", sites=(Site("", "b k", lambda c: c.output["logits"]),)),
    ]


def _stages(units: Sequence[Unit]) -> list[str]:
    """The last layer of each."""
    last = {unit.name.split(".")[1]: unit.name for unit in units if unit.level == "layer"}
    return list(last.values())


STAGES = Beside(name="hidden_states", sites=_stages, axes="b d y x", switch="output_hidden_states")


@dataclass(frozen=True, kw_only=True)
class Images(Reads):
    """Images of some sizes, none of them square, of so many channels; `vocab_size` is the number of classes."""

    channels: int

    def standard(self) -> list[Batch]:
        return [self.images("plain", (2, self.channels, 33, 28)), self.images("long", (1, self.channels, 21, 40))]

    def images(self, name: str, shape: tuple[int, ...]) -> Batch:
        return Batch(name=name, inputs={"images": integers(f"images.{name}", shape, 8) / 64})

    def labels(self, batch: Batch) -> Tensor:
        """The class of each image."""
        return torch.arange(batch.rows) % self.vocab_size


def reads(config: Any) -> Reads:
    return Images(vocab_size=config.n_classes, causal=False, padding=(), positions=False, channels=config.n_channels)


# --- deviations ---


def _pooled(how: Callable[[Tensor, int], Tensor]) -> Callable[[nn.Module], None]:
    """Mix by another average of neighbours, so far apart at most."""
    return forward_of(PoolMixing, lambda self, x: how(x, self.size))


def _mean(x: Tensor, size: int, *, counted: bool = False) -> Tensor:
    return F.avg_pool2d(x, size, stride=1, padding=size // 2, count_include_pad=counted)


MIXING: dict[str, Callable[[Tensor, int], Tensor]] = {
    "the mean without x taken off": _mean,
    "padding counted in the mean": lambda x, size: _mean(x, size, counted=True) - x,
    "maximum instead of the mean": lambda x, size: F.max_pool2d(x, size, stride=1, padding=size // 2) - x,
    "neighbourhood two wider": lambda x, size: _mean(x, size + 2) - x,
    "neighbours of a row alone": lambda x, size: F.avg_pool2d(x, (1, size), 1, (0, size // 2), count_include_pad=False) - x,
}


def _normed(*axes: int, unbiased: bool = False) -> Callable[[nn.Module], None]:
    """Normalise over some axes of (b, d, y, x) alone."""

    def forward(self: ImageNorm, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, axes, correction=int(unbiased), keepdim=True)
        return (x - mean) * torch.rsqrt(variance + self.eps) * self.weight[:, None, None] + self.bias[:, None, None]

    return forward_of(ImageNorm, forward)


def _scales_swapped(layer: PoolFormerLayer) -> None:
    layer.mixer_scale, layer.ffn_scale = layer.ffn_scale, layer.mixer_scale


def _unscaled(layer: PoolFormerLayer) -> None:
    layer.mixer_scale = layer.ffn_scale = None


def _post_norm(self: PoolFormerLayer, x: Tensor) -> Tensor:
    z = self.mixer_norm(x + scaled(self.mixer(x), self.mixer_scale))
    return self.ffn_norm(z + scaled(self.ffn(z), self.ffn_scale))


def _parallel(self: PoolFormerLayer, x: Tensor) -> Tensor:
    z = x + scaled(self.mixer(self.mixer_norm(x)), self.mixer_scale)
    return z + scaled(self.ffn(self.ffn_norm(x)), self.ffn_scale)


def _biases_dropped(norm: ImageNorm) -> None:
    norm.bias = nn.Parameter(torch.zeros_like(norm.bias), requires_grad=False)


def _pooled_before_the_norm(model: PoolFormerModel) -> None:
    model.norm.forward = lambda x: ImageNorm.forward(model.norm, x.mean((2, 3), keepdim=True))


def _without_padding(model: PoolFormerModel) -> None:
    first: Any = model.embeds[0]
    first.forward = lambda input: F.conv2d(input, first.weight, first.bias, first.stride)


def _flipped(model: PoolFormerModel) -> None:
    first: Any = model.embeds[0]
    first.forward = lambda input: F.conv2d(input, first.weight.flip(2, 3), first.bias, first.stride, first.padding)


SCALED = ("base", "two-stages", "wide-pool")
ERF = ("base", "no-scale")

FAMILY = Family(
    name="poolformer",
    hf_class="PoolFormerForImageClassification",
    inert={
        "tie_word_embeddings": "there are no words",
        "patch_size": "nothing reads it: each stage has its own",
        "stride": "nothing reads it: each stage has its own",
    },
    variants=tiny.VARIANTS,
    initial=initialisation.poolformer,
    alone=(PUBLISHED,),
    units=units,
    reads=reads,
    caches=(),
    backends=(Backend("eager"),),
    beside=(STAGES,),
    siblings=siblings.bare("PoolFormer", "{last}"),
    deviations=(
        *(Deviation(name=name, site="mixer", apply=_pooled(how), variants=SCALED) for name, how in MIXING.items()),
        Deviation(name="eps is 1e-3", site="mixer_norm", apply=each(ImageNorm, constant("eps", 1e-3))),
        Deviation(name="norm of each channel", site="mixer_norm", apply=_normed(2, 3)),
        Deviation(name="norm of each place", site="mixer_norm", apply=_normed(1)),
        Deviation(name="variance divided by n - 1", site="mixer_norm", apply=_normed(1, 2, 3, unbiased=True)),
        Deviation(name="bias of the norms dropped", site="mixer_norm", apply=each(ImageNorm, _biases_dropped)),
        Deviation(name="tanh gelu for gelu", site="ffn", apply=each(ConvFFN, constant("activation", gelu_tanh)), variants=ERF),
        Deviation(name="bias of the channel mixer dropped", site="ffn", apply=each(ConvFFN, bare_bias("out_proj"))),
        Deviation(name="scales swapped", site="layer", apply=each(PoolFormerLayer, _scales_swapped), variants=SCALED),
        Deviation(name="scales left out", site="layer", apply=each(PoolFormerLayer, _unscaled), variants=SCALED),
        Deviation(name="norm after the residual", site="layer", apply=forward_of(PoolFormerLayer, _post_norm)),
        Deviation(name="the channel mixer reads the layer's input", site="layer", apply=forward_of(PoolFormerLayer, _parallel)),
        *(
            Deviation(name=name, site=site, apply=each(PoolFormerModel, change), variants=("wide-pool",))
            for name, site, change in (
                ("patches without padding", "embeds.0", _without_padding),
                ("patches read backwards", "embeds.0", _flipped),
                ("mean of the image before the last norm", "norm", _pooled_before_the_norm),
            )
        ),
    ),
)
