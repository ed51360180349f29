"""Feed-forward networks: the channel mixers."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

ACTIVATIONS = {"silu": F.silu}


class GatedFFN(nn.Module):
    """LinearDown(act(LinearGate(x)) * LinearUp(x)); SwiGLU when act is SiLU(x) = x * sigmoid(x).

    With three matrices instead of two, d_ff is about 8/3 of d_model where a plain FFN has 4 (Llama-7B: 4096 -> 11008).
    Seed 1, "GatedFFN / SwiGLU"; Shazeer 2020.
    """

    def __init__(self, *, d_model: int, d_ff: int, bias: bool, activation: str):
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.gate_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.up_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.down_proj = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        gated = self.activation(self.gate_proj(x)) * self.up_proj(x)  # as (*batch, f)
        return self.down_proj(gated)
