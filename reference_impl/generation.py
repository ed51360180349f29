"""Greedy decoding with a cache. Seed 2, 3.1: one token at a time, each read once."""

from inspect import signature
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def positions_of(real: Bool[Tensor, "b t"]) -> Int[Tensor, "b t"]:
    """Number the real tokens of each row from 0; padding gets a neighbour's number, which no result depends on."""
    return (real.long().cumsum(-1) - 1).clamp(min=0)


@torch.no_grad()
def generate_greedy(
    model: Any,
    ids: Int[Tensor, "b s"],
    *,
    n_new: int,
    real: Bool[Tensor, "b s"] | None = None,
    eos: tuple[int, ...] = (),
    **beside: Tensor,
) -> Int[Tensor, "b n"]:
    """The `n_new` most likely tokens after `ids`, one by one.

    model: one that has `new_cache` and reads token by token. real: False for padding on the left. eos: a row that produced
    one of these goes on with the first of them, and decoding stops when every row has. beside: what the model reads
    besides, as a source or a memory, at every step alike.
    """
    placed = "positions" in signature(model.forward).parameters  # a model may number its tokens by itself
    cache, out, step = model.new_cache(), [], ids
    done = torch.zeros(len(ids), 1, dtype=torch.bool, device=ids.device)
    for _ in range(n_new):
        if real is not None:
            beside |= {"real": real} | ({"positions": positions_of(real)[:, -step.shape[1] :]} if placed else {})
        logits = model(step, **beside, cache=cache)  # as (b, s, v)
        step = logits[:, -1].argmax(-1, keepdim=True)  # as (b, 1)
        if eos:
            step = step.masked_fill(done, eos[0])
            done |= torch.isin(step, torch.tensor(eos, device=ids.device))
        out.append(step)
        real = None if real is None else torch.cat([real, torch.ones_like(done)], -1)
        if eos and done.all():
            break
    return torch.cat(out, -1)
