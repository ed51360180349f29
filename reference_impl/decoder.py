"""The trunk of a decoder-only language model. R1, "LlamaModel": its relatives differ in the layer alone."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from reference_impl.cache import KVCache, LayerCache
from reference_impl.mask import causal_mask, padding_mask, window_mask
from reference_impl.norm import RMSNorm
from reference_impl.position import RopeConfig, RotaryEmbedding
from reference_impl.site import Site


class PreNormLayer(nn.Module):
    """z = x + Attention(RMSNorm(x)); y = z + FFN(RMSNorm(z)). A family says which attention and which network."""

    attn_norm: nn.Module
    attn: nn.Module
    ffn_norm: nn.Module
    ffn: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.mask = Site()

    def forward(
        self,
        x: Float[Tensor, "b s d"],
        rope: tuple[Float[Tensor, "#b s p"], Float[Tensor, "#b s p"]],
        visible: Bool[Tensor, "#b 1 s t"],
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "b s d"]:
        z = x + self.attn(self.attn_norm(x), rope, self.mask(visible), cache)
        return z + self.ffn(self.ffn_norm(z))


class Decoder(nn.Module):
    """LMHead(RMSNorm(Layer^N(TokenEmbedding(ids)))), with RoPE's table and the masks made once for all layers.

    windows: by layer, how many tokens a query sees, its own the last of them; None: all that came before.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        d_model: int,
        layers: Sequence[nn.Module],
        norm_eps: float,
        rope: RopeConfig,
        tied_head: bool,
        windows: Sequence[int | None] | None = None,
    ):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.rope = RotaryEmbedding(rope)
        self.mask = Site()
        self.layers = nn.ModuleList(layers)
        self.windows = list(windows or [None] * len(layers))
        self.norm = RMSNorm(d_model, norm_eps)
        self.lm_head = nn.Linear(d_model, vocab_size, bias=False)
        if tied_head:
            self.lm_head.weight = self.embed.weight

    def new_cache(self) -> KVCache:
        """An empty cache that fits this model."""
        return KVCache(len(self.layers), windows=self.windows)

    def forward(
        self,
        ids: Int[Tensor, "b s"],
        *,
        positions: Int[Tensor, "b s"] | None = None,
        real: Bool[Tensor, "b t"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "b s v"]:
        """Logits of the next token after each of `ids`.

        positions: what RoPE rotates by; without them, counted on from the cache. real: False for padding, over the
        cached tokens too. cache: is read, and the new tokens are added to it.
        """
        past = cache.length if cache is not None else 0
        slots = torch.arange(past + ids.shape[1], device=ids.device)  # as (t,)
        if positions is None:
            positions = slots[past:].expand(ids.shape)
        visible = causal_mask(slots[past:], slots)  # as (1, 1, s, t)
        if real is not None:
            visible = visible & padding_mask(real)  # as (b, 1, s, t)
        visible = self.mask(visible)
        masks = {
            window: visible if window is None else visible & window_mask(slots[past:], slots, window)
            for window in set(self.windows)
        }

        x = self.embed(ids)  # as (b, s, d)
        rope = self.rope(positions, x.dtype)  # two of (b, s, p)
        for i, layer in enumerate(self.layers):
            x = layer(x, rope, masks[self.windows[i]], cache.layers[i] if cache is not None else None)
        return self.lm_head(self.norm(x))
