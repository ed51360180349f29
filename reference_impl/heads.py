"""What encoders put on top of their layers. Seed 1, "BertModel"; Devlin et al. 2018, 3.1."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from reference_impl.ffn import ACTIVATIONS
from reference_impl.norm import LayerNorm


class Pooler(nn.Module):
    """Tanh(Linear(y[:, 0])): a sequence by its first token."""

    def __init__(self, d_model: int):
        super().__init__()
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, y: Float[Tensor, "b s d"]) -> Float[Tensor, "b d"]:
        return torch.tanh(self.proj(y[:, 0]))


class MLMHead(nn.Module):
    """LinearDecoder(LayerNorm(act(Linear(y)))). Its matrix is the token embedding or its own, its bias its own."""

    def __init__(self, d_model: int, vocab_size: int, *, activation: str, norm_eps: float):
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.proj = nn.Linear(d_model, d_model)
        self.norm = LayerNorm(d_model, norm_eps)
        self.decoder = nn.Linear(d_model, vocab_size)

    def forward(self, y: Float[Tensor, "b s d"]) -> Float[Tensor, "b s v"]:
        return self.decoder(self.norm(self.activation(self.proj(y))))
