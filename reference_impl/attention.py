"""Softmax attention: MHA over a sequence or over a memory; grouped heads with RoPE, of which MHA and MQA are the two ends."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from reference_impl.cache import LayerCache
from reference_impl.norm import RMSNorm
from reference_impl.position import ROTATIONS, Pairing
from reference_impl.precision import widen
from reference_impl.site import Site


def split_heads(x: Float[Tensor, "b s he"], n_heads: int) -> Float[Tensor, "b h s e"]:
    """(b, s, h * e) -> (b, h, s, e)."""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def merge_heads(x: Float[Tensor, "b h s e"]) -> Float[Tensor, "b s he"]:
    """(b, h, s, e) -> (b, s, h * e)."""
    return x.transpose(1, 2).flatten(-2)


def softmax_attention(
    scores: Float[Tensor, "b h s t"], visible: Bool[Tensor, "#b #h #s t"]
) -> Float[Tensor, "b h s t"]:
    """Softmax over the visible keys. A query that sees no key gets a finite answer, which means nothing. R2,
    "1.1 注意力机制 Self-Attention"."""
    scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    return widen(scores).softmax(-1).to(scores.dtype)  # exponentials and their sum need float32; the product does not


class MHA(nn.Module):
    """MHA(x), or MHA(x, memory): CrossAttention, in which keys and values are made of another sequence.

    scale: what the product of q and k is multiplied with; 1 / sqrt(d_head) nearly everywhere. dropout: on the probabilities.
    d_memory: width of the memory where it is not that of x.
    R1, "MHA" and "CrossAttention"; R2, "1.2 多头注意力机制 MHA"; Vaswani et al. 2017, 3.2.
    """

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        d_head: int,
        scale: float,
        bias: bool = True,
        dropout: float = 0.0,
        d_memory: int | None = None,
    ):
        super().__init__()
        self.n_heads, self.scale = n_heads, scale
        self.q_proj = nn.Linear(d_model, n_heads * d_head, bias=bias)
        self.k_proj = nn.Linear(d_memory or d_model, n_heads * d_head, bias=bias)
        self.v_proj = nn.Linear(d_memory or d_model, n_heads * d_head, bias=bias)
        self.o_proj = nn.Linear(n_heads * d_head, d_model, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.keys, self.values, self.probs, self.mixed = Site(), Site(), Site(), Site()

    def forward(
        self,
        x: Float[Tensor, "b s d"],
        visible: Bool[Tensor, "#b #h #s t"],
        *,
        memory: Float[Tensor, "b t d2"] | None = None,
        bias: Float[Tensor, "#b #h #s t"] | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "b s d"]:
        """bias: added to the scores, as relative positions are. cache: of x's own keys, or of the memory's."""
        q = split_heads(self.q_proj(x), self.n_heads)  # as (b, h, s, e)
        if memory is not None and cache is not None and cache.length:
            k, v = cache.held()  # the memory does not change from step to step
        else:
            source = x if memory is None else memory
            k = split_heads(self.k_proj(source), self.n_heads)  # as (b, h, t, e)
            v = split_heads(self.v_proj(source), self.n_heads)  # as (b, h, t, e)
            k, v = cache.append(k, v) if cache is not None else (k, v)
        k, v = self.keys(k), self.values(v)

        scores = q @ k.mT * self.scale  # as (b, h, s, t)
        if bias is not None:
            scores = scores + bias
        p = self.probs(softmax_attention(scores, visible))  # as (b, h, s, t)
        y = self.mixed(merge_heads(self.dropout(p) @ v))  # as (b, s, h * e)
        return self.o_proj(y)


class Attention(nn.Module):
    """LlamaAttention: grouped-query attention with RoPE, which is applied before the cache, and the cache before Repeat.

    qk_norm_eps: of the RMSNorms over each head of q and of k, before RoPE (QK-norm), which Qwen3Attention has.
    R1, "MQA / GQA", "LlamaAttention" and "Qwen3Attention"; Ainslie et al. 2023.
    """

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        n_kv_heads: int,
        d_head: int,
        qkv_bias: bool,
        out_bias: bool,
        pairing: Pairing,
        dropout: float = 0.0,
        qk_norm_eps: float | None = None,
    ):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.scale = n_heads, n_kv_heads, d_head**-0.5
        self.rotate = ROTATIONS[pairing]
        self.q_proj = nn.Linear(d_model, n_heads * d_head, bias=qkv_bias)
        self.k_proj = nn.Linear(d_model, n_kv_heads * d_head, bias=qkv_bias)
        self.v_proj = nn.Linear(d_model, n_kv_heads * d_head, bias=qkv_bias)
        self.o_proj = nn.Linear(n_heads * d_head, d_model, bias=out_bias)
        self.q_norm = nn.Identity() if qk_norm_eps is None else RMSNorm(d_head, qk_norm_eps)
        self.k_norm = nn.Identity() if qk_norm_eps is None else RMSNorm(d_head, qk_norm_eps)
        self.dropout = nn.Dropout(dropout)
        self.keys, self.values, self.probs = Site(), Site(), Site()

    def repeat(self, x: Float[Tensor, "b g t e"]) -> Float[Tensor, "b h t e"]:
        """Repeat: each key/value head serves neighbouring query heads. repeat_interleave, without a copy in MQA."""
        group = self.n_heads // self.n_kv_heads
        return x.unsqueeze(2).expand(-1, -1, group, -1, -1).flatten(1, 2)

    def forward(
        self,
        x: Float[Tensor, "b s d"],
        rope: tuple[Float[Tensor, "#b s p"], Float[Tensor, "#b s p"]],
        visible: Bool[Tensor, "#b 1 s t"],
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "b s d"]:
        q = self.q_norm(split_heads(self.q_proj(x), self.n_heads))  # as (b, h, s, e)
        k = self.k_norm(split_heads(self.k_proj(x), self.n_kv_heads))  # as (b, g, s, e)
        v = split_heads(self.v_proj(x), self.n_kv_heads)  # as (b, g, s, e)
        q, k = self.rotate(q, *rope), self.rotate(k, *rope)
        if cache is not None:
            k, v = cache.append(k, v)  # as (b, g, t, e)
        k, v = self.keys(k), self.values(v)
        visible = visible[..., -k.shape[-2] :]  # a cache with a window has forgotten the first keys

        scores = q @ self.repeat(k).mT * self.scale  # as (b, h, s, t); scaled after the product, so rounded after it
        p = self.probs(softmax_attention(scores, visible))  # as (b, h, s, t)
        y = self.dropout(p) @ self.repeat(v)  # as (b, h, s, e)
        return self.o_proj(merge_heads(y))
