"""Embeddings beyond the lookup of a token."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class LearnedPositions(nn.Module):
    """PositionEmbedding: one trained vector a position, which is added at the input alone.

    The table is a hard limit: GPT-2 has 1024 positions, BERT 512. offset: rows before that of position 0, which are
    never read (BART has two).
    R1, "可学习 PE".
    """

    def __init__(self, max_positions: int, width: int, *, offset: int = 0):
        super().__init__()
        self.max_positions, self.offset = max_positions, offset
        self.weight = nn.Parameter(torch.empty(max_positions + offset, width))

    def forward(self, positions: Int[Tensor, "#b s"]) -> Float[Tensor, "#b s d"]:
        """Errors: ValueError for a position that the table does not have."""
        outside = positions[(positions < 0) | (positions >= self.max_positions)]
        if outside.numel():
            last = self.max_positions - 1
            raise ValueError(f"position {int(outside[0])} has no embedding: the table holds positions 0 to {last}")
        return nn.functional.embedding(positions + self.offset, self.weight)
