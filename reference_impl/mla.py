"""Multi-head latent attention, in both of its forms. R1, "MLA"; DeepSeek-AI 2024."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from reference_impl.attention import merge_heads, softmax_attention, split_heads
from reference_impl.cache import LayerCache
from reference_impl.norm import RMSNorm
from reference_impl.position import ROTATIONS, Pairing
from reference_impl.site import Site

LATENT_NORM_EPS = 1e-6
"""Of the norms on latents: a constant of the architecture, whatever the config's eps is."""


class MLA(nn.Module):
    """Keys and values are unpacked from one latent a token, and position travels apart, in `d_rope` components that all
    heads share. The cache holds the normed latent and the rotated key: kv_lora_rank + d_rope numbers a token.

    *Expanded*, LinearKVB unpacks the latent, and attention is as ever. *Absorbed*, its part W_UK for keys goes into the
    query and its part W_UV for values into the output, and attention runs on latents: the same numbers, without
    unpacking a cache that may be long.
    """

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        q_lora_rank: int | None,
        kv_lora_rank: int,
        d_nope: int,
        d_rope: int,
        d_v: int,
        bias: bool,
        mscale: float,
        pairing: Pairing,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.n_heads, self.kv_lora_rank = n_heads, kv_lora_rank
        self.d_nope, self.d_rope, self.d_v = d_nope, d_rope, d_v
        self.scale = (d_nope + d_rope) ** -0.5 * mscale * mscale  # mscale on q and on k
        self.rotate = ROTATIONS[pairing]
        self.absorbed = False

        d_q = n_heads * (d_nope + d_rope)
        if q_lora_rank is None:
            self.q_proj = nn.Linear(d_model, d_q, bias=False)
        else:
            self.q_a_proj = nn.Linear(d_model, q_lora_rank, bias=bias)
            self.q_norm = RMSNorm(q_lora_rank, LATENT_NORM_EPS)
            self.q_b_proj = nn.Linear(q_lora_rank, d_q, bias=False)
        self.kv_a_proj = nn.Linear(d_model, kv_lora_rank + d_rope, bias=bias)
        self.kv_norm = RMSNorm(kv_lora_rank, LATENT_NORM_EPS)
        self.kv_b_proj = nn.Linear(kv_lora_rank, n_heads * (d_nope + d_v), bias=False)
        self.o_proj = nn.Linear(n_heads * d_v, d_model, bias=bias)
        self.dropout = nn.Dropout(dropout)  # on the probabilities
        self.latent, self.rope_key, self.probs = Site(), Site(), Site()

    def query(self, x: Float[Tensor, "b s d"]) -> Float[Tensor, "b s hq"]:
        """LinearQB(RMSNorm(LinearQA(x))), or one projection where the queries have no latent."""
        if hasattr(self, "q_proj"):
            return self.q_proj(x)
        return self.q_b_proj(self.q_norm(self.q_a_proj(x)))

    def forward(
        self,
        x: Float[Tensor, "b s d"],
        rope: tuple[Float[Tensor, "#b s p"], Float[Tensor, "#b s p"]],
        visible: Bool[Tensor, "#b 1 s t"],
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "b s d"]:
        q = split_heads(self.query(x), self.n_heads)  # as (b, h, s, d_nope + d_rope)
        q_nope, q_rope = q.split([self.d_nope, self.d_rope], -1)
        c_kv, k_rope = self.kv_a_proj(x).split([self.kv_lora_rank, self.d_rope], -1)
        latent = self.kv_norm(c_kv).unsqueeze(1)  # as (b, 1, s, r)
        q_rope, k_rope = self.rotate(q_rope, *rope), self.rotate(k_rope.unsqueeze(1), *rope)  # the latter as (b, 1, s, d_rope)
        if cache is not None:
            latent, k_rope = cache.append(latent, k_rope)  # as (b, 1, t, …)
        latent, k_rope = self.latent(latent), self.rope_key(k_rope)

        attend = self.attend_absorbed if self.absorbed else self.attend_expanded
        return self.o_proj(merge_heads(attend(q_nope, q_rope, latent, k_rope, visible)))

    def attend_expanded(
        self,
        q_nope: Float[Tensor, "b h s e"],
        q_rope: Float[Tensor, "b h s e2"],
        latent: Float[Tensor, "b 1 t r"],
        k_rope: Float[Tensor, "b 1 t e2"],
        visible: Bool[Tensor, "#b 1 s t"],
    ) -> Float[Tensor, "b h s e3"]:
        """Unpack every latent into keys and values of every head."""
        kv = split_heads(self.kv_b_proj(latent.squeeze(1)), self.n_heads)  # as (b, h, t, d_nope + d_v)
        k_nope, v = kv.split([self.d_nope, self.d_v], -1)
        q = torch.cat([q_nope, q_rope], -1)  # as (b, h, s, d_nope + d_rope)
        k = torch.cat([k_nope, k_rope.expand(-1, self.n_heads, -1, -1)], -1)  # as (b, h, t, d_nope + d_rope)
        p = self.probs(softmax_attention(q @ k.mT * self.scale, visible))  # as (b, h, s, t)
        return self.dropout(p) @ v

    def attend_absorbed(
        self,
        q_nope: Float[Tensor, "b h s e"],
        q_rope: Float[Tensor, "b h s e2"],
        latent: Float[Tensor, "b 1 t r"],
        k_rope: Float[Tensor, "b 1 t e2"],
        visible: Bool[Tensor, "#b 1 s t"],
    ) -> Float[Tensor, "b h s e3"]:
        """q·(W_UK c) = (q W_UK)·c and Sum(p W_UV c) = W_UV Sum(p c): one shared key and value head, as in MQA."""
        by_head = self.kv_b_proj.weight.unflatten(0, (self.n_heads, -1))  # as (h, d_nope + d_v, r)
        w_uk, w_uv = by_head.split([self.d_nope, self.d_v], 1)
        q = torch.cat([q_nope @ w_uk, q_rope], -1)  # as (b, h, s, r + d_rope)
        k = torch.cat([latent, k_rope], -1)  # as (b, 1, t, r + d_rope)
        p = self.probs(softmax_attention(q @ k.mT * self.scale, visible))  # as (b, h, s, t)
        return self.dropout(p) @ latent @ w_uv.mT
