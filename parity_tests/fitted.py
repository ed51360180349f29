"""Tiny models that have learned something, in seconds: each token follows from those before it, most of the time."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, MASK, LENGTH = {1: 30, 2: 12}, 30, 32
"""How many tokens a text has in which one or two tell the next; which one hides others; how long the rows are."""

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": WORDS[2] + 1,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
BERT: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "vocab_size": MASK + 1,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "tie_word_embeddings": True,
}


def rows(n: int, seed: int, *, by: int = 2, noise: float = 0.05) -> Tensor:
    """(n, LENGTH): each token is told by the one or two before it, but for a part that is drawn."""
    drawn = torch.Generator().manual_seed(seed)
    words = WORDS[by]
    orders = [torch.randperm(words, generator=torch.Generator().manual_seed(7 + i)) for i in range(words)]
    follows = torch.stack(orders, 1)  # by the token before, and the one before that
    out = torch.randint(0, words, (n, LENGTH), generator=drawn)
    wild = torch.rand(n, LENGTH, generator=drawn) < noise
    for i in range(2, LENGTH):
        out[:, i] = torch.where(wild[:, i], out[:, i], follows[out[:, i - 1], out[:, i - 2] * (by - 1)])
    return out


def _next(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def _hidden(model: nn.Module, ids: Tensor) -> Tensor:
    hidden = torch.arange(LENGTH) % 7 == int(ids[0, 0]) % 7
    return F.cross_entropy(model(ids.masked_fill(hidden, MASK))[:, hidden].flatten(0, 1), ids[:, hidden].flatten())


def fit(model: nn.Module, *, steps: int, masked: bool = False, seed: int = 0) -> float:
    """Fits the model in place, always alike, and returns the last loss."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, 0.15)
            else:
                parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
    loss: Callable[[nn.Module, Tensor], Tensor] = _hidden if masked else _next
    optimiser = torch.optim.Adam(model.parameters(), lr=4e-3)
    last = float("inf")
    for ids in rows(32 * steps, seed=1, by=1 if masked else 2).split(32):
        optimiser.zero_grad()
        value = loss(model, ids)
        value.backward()
        optimiser.step()
        last = value.item()
    return last
