"""PoolFormer. R1, "Token Mixing 与 Channel Mixing"; Yu et al. 2022, "MetaFormer Is Actually What You Need for Vision"."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from reference_impl.ffn import ACTIVATIONS
from reference_impl.norm import ImageNorm
from reference_impl.pooling import DropPath, PoolMixing

NORM_EPS = 1e-5
"""Of every norm: a constant of the architecture, which no config names."""


@dataclass(frozen=True, kw_only=True)
class PoolFormerConfig:
    """What PoolFormers vary; tuples have an entry a stage. drop_path: of the last layer, see `PoolFormerModel`."""

    n_channels: int
    widths: tuple[int, ...]
    depths: tuple[int, ...]
    patch_sizes: tuple[int, ...]
    strides: tuple[int, ...]
    paddings: tuple[int, ...]
    pool_size: int
    mlp_ratio: float
    activation: str
    layer_scale: bool
    drop_path: float
    n_classes: int

    @property
    def n_layers(self) -> int:
        return sum(self.depths)


class ConvFFN(nn.Module):
    """Drop(LinearOut(Drop(act(LinearIn(x))))), at every place of an image: a linear map there is a 1x1 convolution.

    The drops are those of whole samples, as in the layer, which drops the sum of both once more.
    """

    def __init__(self, *, d_model: int, d_ff: int, activation: str, drop_path: float):
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.in_proj = nn.Conv2d(d_model, d_ff, 1)
        self.out_proj = nn.Conv2d(d_ff, d_model, 1)
        self.drop = DropPath(drop_path)

    def forward(self, x: Float[Tensor, "b d y x"]) -> Float[Tensor, "b d y x"]:
        inner = self.drop(self.activation(self.in_proj(x)))  # as (b, f, y, x)
        return self.drop(self.out_proj(inner))


class PoolFormerLayer(nn.Module):
    """z = x + Drop(s1 * PoolMixing(Norm(x))); y = z + Drop(s2 * ConvFFN(Norm(z))), with a scale a channel or without."""

    def __init__(self, config: PoolFormerConfig, *, d_model: int, drop_path: float):
        super().__init__()
        self.mixer_norm = ImageNorm(d_model, NORM_EPS)
        self.mixer = PoolMixing(config.pool_size)
        self.ffn_norm = ImageNorm(d_model, NORM_EPS)
        self.ffn = ConvFFN(
            d_model=d_model, d_ff=int(d_model * config.mlp_ratio), activation=config.activation, drop_path=drop_path
        )
        self.mixer_scale = nn.Parameter(torch.empty(d_model)) if config.layer_scale else None
        self.ffn_scale = nn.Parameter(torch.empty(d_model)) if config.layer_scale else None
        self.drop = DropPath(drop_path)

    def forward(self, x: Float[Tensor, "b d y x"]) -> Float[Tensor, "b d y x"]:
        z = x + self.drop(scaled(self.mixer(self.mixer_norm(x)), self.mixer_scale))
        return z + self.drop(scaled(self.ffn(self.ffn_norm(z)), self.ffn_scale))


def scaled(x: Float[Tensor, "b d y x"], scale: Float[Tensor, " d"] | None) -> Float[Tensor, "b d y x"]:
    """LayerScale: each channel times its own factor."""
    return x if scale is None else scale[:, None, None] * x


class PoolFormerModel(nn.Module):
    """LinearOut(Mean(Norm(Stage^N(image)))). A stage is a convolution that makes patches, and PoolFormerLayers on them.

    Samples are dropped with a probability that grows linearly from layer to layer, from 0 to `drop_path`.
    """

    def __init__(self, config: PoolFormerConfig):
        super().__init__()
        self.config = config
        widths = (config.n_channels, *config.widths)
        sizes = zip(widths, widths[1:], config.patch_sizes, config.strides, config.paddings, strict=False)
        self.embeds = nn.ModuleList(nn.Conv2d(a, b, patch, stride, padding) for a, b, patch, stride, padding in sizes)
        drops = iter(torch.linspace(0, config.drop_path, config.n_layers, device="cpu").tolist())
        self.layers = nn.ModuleList(
            nn.Sequential(*(PoolFormerLayer(config, d_model=width, drop_path=next(drops)) for _ in range(depth)))
            for width, depth in zip(config.widths, config.depths, strict=True)
        )
        self.norm = ImageNorm(config.widths[-1], NORM_EPS)
        self.classifier = nn.Linear(config.widths[-1], config.n_classes)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k"]:
        """Logits of the classes of each image, of any size that leaves a patch to every stage."""
        x = images
        for embed, stage in zip(self.embeds, self.layers, strict=True):
            x = stage(embed(x))  # as (b, d, y, x)
        return self.classifier(self.norm(x).mean((2, 3)))
