"""Faults planted in torch and transformers, by what they do wrong, so that the facts that compute something turn red."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers import activations

from parity_tests.facts import formulas, subjects

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


def dropped(result: Any, *args: Any) -> Any:
    """A model whose last states, or logits, are of another scale."""
    for name in ("last_hidden_state", "logits"):
        if name in result:
            result[name] = result[name] * 1.01
    return result


def of_models(change: Callable[[Any], None]) -> Plant:
    """Something wrong with every tiny model that a fact is about, as it was built."""

    @contextmanager
    def plant() -> Iterator[None]:
        def wrong(model: Any) -> Any:
            made = copy.deepcopy(model)
            if isinstance(made, nn.Module):
                with torch.no_grad():
                    change(made)
            return made

        with mock.patch.object(subjects, "copy", SimpleNamespace(deepcopy=wrong, copy=copy.copy)):
            yield

    return plant


def other_tables(model: Any) -> None:
    """Frequencies, and fixed tables of positions."""
    for name, tensor in [*model.named_buffers(), *model.named_parameters()]:
        if "inv_freq" in name or "embed_positions" in name:
            tensor.mul_(1.01)


def untied(model: Any) -> None:
    """The head is no longer the embedding."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is not None:
        head.weight = nn.Parameter(head.weight + 0.01, requires_grad=False)


def with_biases(model: Any) -> None:
    """Every projection has a bias."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is None:
            module.bias = nn.Parameter(torch.ones(module.out_features, dtype=module.weight.dtype), requires_grad=False)


def trained_tables(model: Any) -> None:
    """What is fixed is a parameter that is trained."""
    for parameter in model.parameters():
        parameter.requires_grad_(True)


def other_scales(model: Any) -> None:
    """What products of q and k are multiplied with."""
    for module in model.modules():
        if isinstance(getattr(module, "scaling", None), float):
            module.scaling *= 1.01


@contextmanager
def grouped_otherwise() -> Iterator[None]:
    """Fewer heads of keys than of queries, and something else comes out."""
    right = F.scaled_dot_product_attention

    def wrong(*args: Any, **kwargs: Any) -> Tensor:
        return right(*args, **kwargs) * (1.01 if kwargs.get("enable_gqa") else 1)

    with mock.patch.object(F, "scaled_dot_product_attention", wrong):
        yield


def tokens_mixed(result: Any, *args: Any) -> Any:
    """Each token gets something of the others."""
    if isinstance(result, tuple):
        return (tokens_mixed(result[0]), *result[1:])
    return result + result.mean(-2, keepdim=True)


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
    "cross_entropy": of_torch("cross_entropy", scaled),
    "norms": everywhere("Norm", scaled, ending=True),
    "attention": everywhere("Attention", zero, ending=True),
    "networks": everywhere("MLP", scaled, ending=True),
    "mixtures": everywhere("MoE", scaled, ending=True),
    "sparse blocks": everywhere("SparseMoeBlock", scaled, ending=True),
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
    "conv1d of torch": of_torch("conv1d", scaled),
    "multi-head attention": of_class(nn.MultiheadAttention, "forward", scaled),
    "mask of torch": of_module(nn.Transformer, "generate_square_subsequent_mask", lambda mask, *_: torch.zeros_like(mask)),
    "transformer": of_class(nn.Transformer, "forward", scaled),
    "encoder": of_class(nn.TransformerEncoder, "forward", scaled),
    "decoder": of_class(nn.TransformerDecoder, "forward", scaled),
    "groups of sdpa": grouped_otherwise,
    "T5's norm": everywhere("T5LayerNorm", scaled, ending=True),
    "scales of scores": of_models(other_scales),
    "NewGELU": of_class(activations.NewGELUActivation, "forward", lambda y, self, x: x.clamp(min=0)),
    "networks mix tokens": everywhere("MLP", tokens_mixed, ending=True),
    "mixtures mix tokens": everywhere("SparseMoeBlock", tokens_mixed, ending=True),
    "other tables": of_models(other_tables),
    "untied heads": of_models(untied),
    "biases": of_models(with_biases),
    "everything trained": of_models(trained_tables),
    "batch_norm": of_torch("batch_norm", lambda y, x, *_: F.layer_norm(x, x.shape[1:])),
    "formula of RoPE": of_module(formulas, "rope_at", scaled),
    "formula of angles": of_module(formulas, "angles", scaled),
    "formula of frequencies": of_module(formulas, "inv_freq", scaled),
    "formula of sinusoids": of_module(formulas, "sinusoid", scaled),
    "formula of RMSNorm": of_module(formulas, "rms_norm", lambda y, x, *_: x),
    "formula of pairs": of_module(formulas, "rotate_every_two", scaled),
    "encoder layer": of_class(nn.TransformerEncoderLayer, "forward", scaled),
    "decoder layer": of_class(nn.TransformerDecoderLayer, "forward", scaled),
}

DEFINITIONAL = frozenset(
    """
    mha-width mha-qkv-sizes mha-scale softmax-shape mha-out-size cross-unmasked cross-weights-shape cross-same-module
    torch-multihead-attn bert-crossattention gpt2-crossattention gqa-sizes num-key-value-groups repeat-annotation
    gqa-equals-mha gqa-cache llama-kv-heads-none mixtral-heads deepseek-q-lora-rank deepseek-kv-lora-rank
    deepseek-num-attention-heads deepseek-qk-nope-head-dim deepseek-qk-rope-head-dim deepseek-v-head-dim
    mla-q-projections mla-q-norm mla-kv-a mla-kv-b mla-cache-576 mla-cache-compressed mla-mha-40960 mla-mscale-once
    yarn-apply-mscale mla-no-repeat llama-attention-dropout qwen3-qk-norm-axis qwen3-head-dim qwen3-head-dim-free
    qwen3-window-off torch-relu ffn-four-times gated-parameters llama-7b-ff mlp-no-dropout mixtral-experts
    mixtral-router mixtral-router-class router-jitter experts-stacked experts-eager-loop experts-default-loop
    softmax-topk aux-loss-in-training deepseek-n-routed-experts deepseek-n-group deepseek-topk-group
    deepseek-num-experts-per-tok deepseek-norm-topk-prob deepseek-routed-scaling-factor deepseek-n-shared-experts
    deepseek-moe-intermediate-size deepseek-intermediate-size correction-bias correction-bias-no-gradient
    correction-bias-updated aux-loss-free fine-grained rms-norm-no-mean eps-torch eps-bert eps-llama
    eps-llama-published sinusoid-once sinusoid-not-learned sinusoid-low-is-fast torch-no-positions marian-frozen
    learned-gpt2 gpt2-1024 bert-512 inv-freq-twice rope-not-on-v theta-llama-2 rope-once-a-model learned-once
    rope-every-layer attention-quadratic mlp-mixer-fixed fnet-no-parameters poolformer-no-parameters rwkv-linear
    mamba-linear depthwise-is-token-mixing encoder-mha-dropout encoder-is-causal-alone encoder-defaults
    encoder-width-defaults encoder-batch-second decoder-is-causal-alone decoder-names bert-attention-parts bert-base
    gpt2-mlp llama-norm-names deepseek-first-dense deepseek-dense-width transformer-sizes transformer-body-only
    transformer-final-norms transformer-batch-second bert-sizes bert-embedding-names bert-token-types bert-vocabulary
    gpt2-sizes gpt2-vocabulary gpt2-n-positions gpt2-family llama-sizes llama-mask-once qwen3-top-level
    mixtral-top-level deepseekv3-top-level deepseek-sizes deepseek-no-mtp deepseek-model-no-mtp qwen3-gqa
    embedding-shape qkv-initialisation own-key probabilities-sum out-mixes-heads encoder-stack
    decoder-blocks-share-memory head-weight logits-shape listing-imports encoder-decoder batched-product
    contiguous-before-view notes-mlp-width
    """.split()
)
"""What states a default, a size, a name, a class or a shape, or which parts there are, and is read off; or an identity of the
mathematics alone, which no twin enters. A release that says otherwise contradicts it; nothing is computed that a fault could
spoil.
"""
