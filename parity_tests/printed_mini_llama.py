"""The mini-LLaMA as R2, section 4 prints it, on the packages it names, with one slip mended: see MultiHeadAttention."""

import torch.nn as nn
import torch.nn.functional as F
from rotary_embedding_torch import RotaryEmbedding
from torch import Tensor
from x_transformers.x_transformers import RMSNorm


class MultiHeadAttention(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads

        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)

        self.out_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.rope = RotaryEmbedding(dim=self.head_dim)

    def rotated(self, x: Tensor) -> Tensor:
        """The seed has `self.rope(x)[:, :, :, :, 0]`, which is x."""
        return self.rope.rotate_queries_or_keys(x)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        B, T, _ = x.shape

        q = self.q_proj(x)
        k = self.k_proj(x)
        v = self.v_proj(x)

        q = q.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k = k.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        v = v.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)

        q = self.rotated(q)
        k = self.rotated(k)

        attn_scores = (q @ k.transpose(-2, -1)) / (self.head_dim**0.5)

        if mask is not None:
            mask = mask.unsqueeze(1)
            attn_scores = attn_scores.masked_fill(mask == 0, float("-inf"))

        attn_weights = F.softmax(attn_scores, dim=-1)
        attn_output = attn_weights @ v

        attn_output = attn_output.transpose(1, 2).contiguous().view(B, T, -1)

        return self.out_proj(attn_output)


class UnmendedAttention(MultiHeadAttention):
    """Word for word."""

    def rotated(self, x: Tensor) -> Tensor:
        return self.rope(x)[:, :, :, :, 0]


class MLP(nn.Module):
    def __init__(self, dim: int, hidden_dim: int | None = None):
        super().__init__()
        hidden_dim = hidden_dim or 4 * dim

        self.gate_proj = nn.Linear(dim, hidden_dim, bias=False)
        self.up_proj = nn.Linear(dim, hidden_dim, bias=False)
        self.out_proj = nn.Linear(hidden_dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x1 = F.silu(self.gate_proj(x))
        x2 = self.up_proj(x)
        x = x1 * x2
        return self.out_proj(x)


class DecoderBlock(nn.Module):
    def __init__(self, dim: int = 512, num_heads: int = 8):
        super().__init__()
        self.attn = MultiHeadAttention(dim, num_heads)
        self.ffn = MLP(dim)
        self.norm1 = RMSNorm(dim)
        self.norm2 = RMSNorm(dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x), mask)
        return x + self.ffn(self.norm2(x))


class MiniLlama(nn.Module):
    def __init__(self, vocab_size: int = 32000, dim: int = 512, depth: int = 8, num_heads: int = 8):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.blocks = nn.ModuleList([DecoderBlock(dim, num_heads) for _ in range(depth)])
        self.norm = RMSNorm(dim)
        self.final_proj = nn.Linear(dim, vocab_size, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x, mask)
        x = self.norm(x)
        return self.final_proj(x)
