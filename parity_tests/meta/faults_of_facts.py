"""Faults planted in torch and transformers, by what they do wrong, so that the facts that compute something turn red."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

Plant = Callable[[], AbstractContextManager[None]]


def of_torch(name: str, change: Callable[..., Any]) -> Plant:
    """A function of torch.nn.functional, whose result is changed: change(result, *arguments)."""

    @contextmanager
    def plant() -> Iterator[None]:
        right = getattr(F, name)

        def wrong(*args: Any, **kwargs: Any) -> Any:
            return change(right(*args, **kwargs), *args)

        with mock.patch.object(F, name, wrong):
            yield

    return plant


def of_module(owner: Any, name: str, change: Callable[..., Any]) -> Plant:
    """A function of a module, or a static one of a class."""

    @contextmanager
    def plant() -> Iterator[None]:
        with mock.patch.object(owner, name, _changed(getattr(owner, name), change)):
            yield

    return plant


def of_class(owner: Any, name: str, change: Callable[..., Any]) -> Plant:
    """A method, whose result is changed: change(result, self, *arguments)."""

    @contextmanager
    def plant() -> Iterator[None]:
        right = getattr(owner, name)

        def wrong(self: Any, *args: Any, **kwargs: Any) -> Any:
            return change(right(self, *args, **kwargs), self, *args)

        with mock.patch.object(owner, name, wrong):
            yield

    return plant


def models() -> list[Any]:
    """Every module of a model of transformers that is imported."""
    return [module for name, module in list(sys.modules.items()) if ".modeling_" in name and name.startswith("transformers.")]


def everywhere(name: str, change: Callable[..., Any], *, ending: bool = False) -> Plant:
    """A function of transformers by its name, in every model; or the forward of every class whose name ends so."""

    @contextmanager
    def plant() -> Iterator[None]:
        with ExitStack() as stack:
            done: set[Any] = set()
            for module in models():
                for key, found in list(vars(module).items()):
                    layer = isinstance(found, type) and issubclass(found, nn.Module) and found not in done
                    if ending and layer and key.endswith(name):
                        done.add(found)
                        stack.enter_context(of_class(found, "forward", change)())
                    elif not ending and key == name:
                        stack.enter_context(mock.patch.object(module, name, _changed(found, change)))
            yield

    return plant


def _changed(right: Any, change: Callable[..., Any]) -> Any:
    def wrong(*args: Any, **kwargs: Any) -> Any:
        return change(right(*args, **kwargs), *args)

    return wrong


def scaled(result: Any, *args: Any) -> Any:
    """One percent too large; of a tuple, its first."""
    if isinstance(result, tuple):
        return (scaled(result[0]), *result[1:])
    return result * 1.01 if isinstance(result, Tensor) and result.is_floating_point() else result


def unrotated(result: Any, q: Tensor, k: Tensor, *args: Any) -> Any:
    return q, k


def zero(result: Any, *args: Any) -> Any:
    if isinstance(result, tuple):
        return (zero(result[0]), *result[1:])
    return torch.zeros_like(result) if isinstance(result, Tensor) else result


def nothing_kept(result: Any, self: Any, keys: Tensor, values: Tensor, *args: Any) -> Any:
    return keys, values


def shortened(result: Any, *args: Any) -> Any:
    return result[:, :-1] if isinstance(result, Tensor) else result


def dropped(result: Any, *args: Any) -> Any:
    """A model whose last states, or logits, are of another scale."""
    for name in ("last_hidden_state", "logits"):
        if name in result:
            result[name] = result[name] * 1.01
    return result


FAULTS: Mapping[str, Plant] = {
    "linear": of_torch("linear", scaled),
    "softmax": of_torch("softmax", lambda y, *_: y.roll(1, -1)),
    "embedding": of_torch("embedding", scaled),
    "layer_norm": of_torch("layer_norm", scaled),
    "relu": of_torch("relu", lambda y, x, *_: x),
    "gelu": of_torch("gelu", lambda y, x, *_: x.clamp(min=0)),
    "silu": of_torch("silu", lambda y, x, *_: x.clamp(min=0)),
    "scaled_dot_product_attention": of_torch("scaled_dot_product_attention", scaled),
    "multi_head_attention_forward": of_torch("multi_head_attention_forward", scaled),
    "dropout": of_torch("dropout", lambda y, x, *_: x),
    "avg_pool2d": of_torch("avg_pool2d", scaled),
    "cross_entropy": of_torch("cross_entropy", scaled),
    "norms": everywhere("Norm", scaled, ending=True),
    "attention": everywhere("Attention", zero, ending=True),
    "networks": everywhere("MLP", scaled, ending=True),
    "mixtures": everywhere("MoE", scaled, ending=True),
    "sparse blocks": everywhere("SparseMoeBlock", scaled, ending=True),
    "routers": everywhere("Router", scaled, ending=True),
    "experts": everywhere("Experts", scaled, ending=True),
    "rotary tables": everywhere("RotaryEmbedding", scaled, ending=True),
    "embeddings": everywhere("Embeddings", scaled, ending=True),
    "poolers": everywhere("Pooler", scaled, ending=True),
    "heads": everywhere("Head", scaled, ending=True),
    "apply_rotary_pos_emb": everywhere("apply_rotary_pos_emb", unrotated),
    "apply_rotary_pos_emb_interleave": everywhere("apply_rotary_pos_emb_interleave", unrotated),
    "rotate_half": everywhere("rotate_half", scaled),
    "repeat_kv": everywhere("repeat_kv", zero),
    "load_balancing_loss_func": everywhere("load_balancing_loss_func", lambda loss, *_: 0 * loss),
    "create_causal_mask": everywhere("create_causal_mask", lambda mask, *_: None),
    "cache": of_class(transformers.DynamicCache, "update", nothing_kept),
    "conv1d": of_class(transformers.pytorch_utils.Conv1D, "forward", scaled),
    "tables of sines": everywhere("SinusoidalPositionalEmbedding", scaled, ending=True),
    "layers": everywhere("Layer", scaled, ending=True),
    "blocks": everywhere("Block", scaled, ending=True),
    "models": everywhere("Model", dropped, ending=True),
    "mixers": everywhere("Mixer", scaled, ending=True),
    "conv1d of torch": of_torch("conv1d", scaled),
    "conv2d": of_torch("conv2d", scaled),
    "fourier": of_module(torch.fft, "fftn", scaled),
    "generate": of_class(transformers.GenerationMixin, "generate", shortened),
    "multi-head attention": of_class(nn.MultiheadAttention, "forward", scaled),
    "mask of torch": of_module(nn.Transformer, "generate_square_subsequent_mask", lambda mask, *_: torch.zeros_like(mask)),
    "transformer": of_class(nn.Transformer, "forward", scaled),
    "encoder": of_class(nn.TransformerEncoder, "forward", scaled),
    "decoder": of_class(nn.TransformerDecoder, "forward", scaled),
    "encoder layer": of_class(nn.TransformerEncoderLayer, "forward", scaled),
    "decoder layer": of_class(nn.TransformerDecoderLayer, "forward", scaled),
}
