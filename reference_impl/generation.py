"""Decoding with a cache: one token at a time, each read once. R2, "3.1 训练和推理"."""

from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from reference_impl.generation_settings import Settings, Written, processed


def positions_of(real: Bool[Tensor, "b t"]) -> Int[Tensor, "b t"]:
    """Number the real tokens of each row from 0; padding gets a neighbour's number, which no result depends on."""
    return (real.long().cumsum(-1) - 1).clamp(min=0)


@dataclass(frozen=True)
class Generated:
    """The new tokens (b, n), and the scores (b, n, v) that each was chosen by."""

    tokens: Int[Tensor, "b n"]
    scores: Float[Tensor, "b n v"]


class Reader:
    """A model that reads a text piece by piece over a cache. numbered: False for padding is given with the text."""

    def __init__(self, model: Any, *, masked: bool, beside: dict[str, Tensor]):
        self.model, self.masked, self.beside = model, masked, beside
        self.placed = "positions" in signature(model.forward).parameters  # a model may number its tokens by itself
        self.cache = model.new_cache()

    def __call__(self, step: Int[Tensor, "b s"], text: Written) -> Float[Tensor, "b v"]:
        """The scores of the token after `step`, the last tokens of `text`."""
        given = dict(self.beside)
        if self.masked:
            given["real"] = text.real
            if self.placed:
                given["positions"] = positions_of(text.real)[:, -step.shape[1] :]
        return self.model(step, **given, cache=self.cache)[:, -1]


def prompted(ids: Tensor, real: Tensor | None, beside: dict[str, Tensor], n_new: int) -> Written:
    """A text of nothing but its prompt."""
    real = torch.ones_like(ids, dtype=torch.bool) if real is None else real
    source, source_real = beside.get("source", ids), beside.get("source_real", real if "source" not in beside else None)
    source_real = torch.ones_like(source, dtype=torch.bool) if source_real is None else source_real
    return Written(ids=ids, real=real, source=source, source_real=source_real, prompt=ids.shape[1], n_new=n_new)


@torch.no_grad()
def generate(
    model: Any,
    ids: Int[Tensor, "b s"],
    *,
    n_new: int,
    settings: Settings | None = None,
    real: Bool[Tensor, "b s"] | None = None,
    follow: Int[Tensor, "b n"] | None = None,
    first: int = 0,
    **beside: Tensor,
) -> Generated:
    """The `n_new` most likely tokens after `ids`, one by one.

    model: one that has `new_cache` and reads token by token. settings: without them nothing ends a text. A row that has
    ended is filled up, and decoding stops when every row has. real: False for padding on the left. follow: tokens to take
    instead of the likeliest, as where somebody drew them. first: so many tokens of the prompt are read in a call of their
    own. beside: what the model reads besides, as a source or a memory.
    """
    settings = settings or Settings()
    read = Reader(model, masked=real is not None, beside=beside)
    if first:
        read(ids[:, :first], prompted(ids[:, :first], None if real is None else real[:, :first], beside, n_new))
    text, step, scores = prompted(ids, real, beside, n_new), ids[:, first:], []
    done = torch.zeros(len(ids), 1, dtype=torch.bool, device=ids.device)
    eos = torch.tensor(settings.eos_token_id, dtype=torch.long, device=ids.device)
    for i in range(n_new if follow is None else follow.shape[1]):
        scores.append(processed(read(step, text), text, settings))  # as (b, v)
        step = scores[-1].argmax(-1, keepdim=True) if follow is None else follow[:, i : i + 1]  # as (b, 1)
        step = step.masked_fill(done, settings.pad_token_id)
        done = done | torch.isin(step, eos)
        text = text.and_then(step)
        if done.all():
            break
    return Generated(text.ids[:, ids.shape[1] :], torch.stack(scores, 1))
