"""The form that a pre-norm layer has whatever its parts are. R1, "Token Mixing 与 Channel Mixing"; Yu et al. 2022."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

Mixer = Callable[..., Tensor]
"""Vectors in, vectors out: a module, or a function where there is nothing to learn."""


class Residual(nn.Module):
    """x + Mixer(Norm(x)): half of a MetaFormer, and all of a layer whose one mixer does both (Mamba's)."""

    def __init__(self, norm: nn.Module, mixer: Mixer):
        super().__init__()
        self.norm, self.mixer = norm, mixer

    def forward(self, x: Float[Tensor, "b *tokens d"], *beside: Any, **named: Any) -> Float[Tensor, "b *tokens d"]:
        """beside, named: what the mixer reads as well, as positions, a mask, a cache or a memory."""
        return x + self.mixer(self.norm(x), *beside, **named)


class MetaFormer(nn.Module):
    """z = x + TokenMixer(Norm(x)); y = z + ChannelMixer(Norm(z)).

    token_mixer: the slot for what passes between tokens: attention, a fixed MLP, the Fourier transform, pooling, a recurrence,
    a rearrangement. channel_mixer: what each token does by itself: an FFN, a GatedFFN, a mixture of experts.
    """

    def __init__(self, *, token_norm: nn.Module, token_mixer: Mixer, channel_norm: nn.Module, channel_mixer: Mixer):
        super().__init__()
        self.tokens = Residual(token_norm, token_mixer)
        self.channels = Residual(channel_norm, channel_mixer)

    def forward(self, x: Float[Tensor, "b *tokens d"], *beside: Any, **named: Any) -> Float[Tensor, "b *tokens d"]:
        """beside, named: what the token mixer reads as well; the channel mixer has the token alone."""
        z = self.tokens(x, *beside, **named)
        return self.channels(z)
