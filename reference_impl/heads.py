"""What lies on the layers: the pooler and the MLM head of encoders, and the heads that a model is trained on further with.

R1, "BertModel"; Devlin et al. 2018, 3.1 and 4; Radford et al. 2018, 3.2 and 3.3; Lewis et al. 2019, 3.
"""

import torch
from jaxtyping import Bool, Float, Int
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


class LinearHead(nn.Module):
    """Linear(Dropout(y)): k numbers for each vector, of a sequence, a token or a choice among several; an answer begins and
    ends where the first and the second of two numbers a token are largest.
    """

    def __init__(self, d_model: int, n_out: int, *, bias: bool = True, dropout: float = 0.0):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.proj = nn.Linear(d_model, n_out, bias=bias)

    def forward(self, y: Float[Tensor, "*b d"]) -> Float[Tensor, "*b k"]:
        return self.proj(self.dropout(y))


class TwoLayerHead(nn.Module):
    """LinearOut(Dropout(Tanh(LinearIn(Dropout(y))))): k numbers for a sequence, of the decoder's vector for its end."""

    def __init__(self, d_model: int, n_out: int, *, dropout: float):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.in_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, n_out)

    def forward(self, y: Float[Tensor, "b d"]) -> Float[Tensor, "b k"]:
        inner = torch.tanh(self.in_proj(self.dropout(y)))  # as (b, d)
        return self.out_proj(self.dropout(inner))


def last_real(y: Float[Tensor, "b s d"], real: Bool[Tensor, "b s"]) -> Float[Tensor, "b d"]:
    """The vector of the last real token of each row, on whichever side its padding is: a decoder's, which has read it all."""
    slots = torch.arange(y.shape[1], device=y.device).expand(real.shape)
    return at(y, slots.masked_fill(~real, 0).amax(-1, keepdim=True))[:, 0]


def at(y: Float[Tensor, "b s d"], slots: Int[Tensor, "b c"]) -> Float[Tensor, "b c d"]:
    """The vectors in these slots of each row."""
    return y.gather(1, slots[..., None].expand(-1, -1, y.shape[-1]))
