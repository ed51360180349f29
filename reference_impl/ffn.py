"""Feed-forward networks: the channel mixers."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


def gelu_tanh(x: Float[Tensor, "*batch f"]) -> Float[Tensor, "*batch f"]:
    """GELU by its tanh approximation, 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): GPT-2's `gelu_new`."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS = {
    "silu": F.silu,
    "swish": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,  # x * Phi(x), by erf
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
}


class FFN(nn.Module):
    """LinearOut(Dropout(act(LinearIn(x)))). The dropout behind LinearOut is the layer's.

    dropout: what PyTorch's layers and BART put behind the activation; BERT and GPT-2 put none there.
    R1, "标准 FFN"; Vaswani et al. 2017, 3.3.
    """

    def __init__(self, *, d_model: int, d_ff: int, bias: bool, activation: str, dropout: float = 0.0):
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.in_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        inner = self.dropout(self.activation(self.in_proj(x)))  # as (*batch, f)
        return self.out_proj(inner)


class GatedFFN(nn.Module):
    """LinearDown(Dropout(act(LinearGate(x)) * LinearUp(x))); SwiGLU when act is SiLU(x) = x * sigmoid(x).

    dropout: T5 has some there; the others have none.
    With three matrices instead of two, d_ff is about 8/3 of d_model where a plain FFN has 4 (Llama-7B: 4096 -> 11008).
    R1, "GatedFFN / SwiGLU"; Shazeer 2020.
    """

    def __init__(self, *, d_model: int, d_ff: int, bias: bool, activation: str, dropout: float = 0.0):
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.gate_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.up_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.down_proj = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        gated = self.activation(self.gate_proj(x)) * self.up_proj(x)  # as (*batch, f)
        return self.down_proj(self.dropout(gated))
