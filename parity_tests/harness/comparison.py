"""The table that closes R1, read off the reference's own modules at published sizes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from reference_impl.attention import MHA, Attention
from reference_impl.decoder import PreNormLayer
from reference_impl.embedding import LearnedPositions
from reference_impl.ffn import FFN, GatedFFN, gelu_tanh
from reference_impl.layer import TransformerLayer
from reference_impl.mla import MLA
from reference_impl.models.transformer import InterleavedPositions, TransformerConfig, TransformerModel
from reference_impl.moe import DeepSeekMoE, MoE
from reference_impl.norm import RMSNorm
from reference_impl.position import RotaryEmbedding
from weight_mapping.config import parse_config

HEADINGS = ("Model", "Norm", "位置", "位置编码", "Attention", "FFN", "激活")
"""As the seed has them: model, norm, where it is, positions, attention, feed-forward network, activation."""

BASE = TransformerConfig(
    vocab_size=37000,
    d_model=512,
    n_encoder_layers=6,
    n_decoder_layers=6,
    n_heads=8,
    d_head=64,
    d_ff=2048,
    norm_eps=1e-5,
    norm_first=False,
    bias=True,
    activation="relu",
    dropout=0.1,
)
"""The original Transformer, "base"."""

PUBLISHED: dict[str, tuple[dict[str, Any], ...]] = {
    "BERT": ({"model_type": "bert"},),
    "GPT-2": ({"model_type": "gpt2"},),
    "Llama": ({"model_type": "llama"}, {"model_type": "llama", "num_key_value_heads": 8}),
    "Qwen3": ({"model_type": "qwen3", "num_key_value_heads": 8}, {"model_type": "qwen3_moe"}),
    "Mixtral": ({"model_type": "mixtral"},),
    "DeepSeek-V3": ({"model_type": "deepseek_v3"},),
}
"""config.json files without what is the family's default. Heads are grouped in Llama 3 and in every released Qwen3."""

ACTIVATIONS = {F.relu: "ReLU", F.gelu: "GELU", gelu_tanh: "GELU (tanh)", F.silu: "SiLU"}


def models() -> dict[str, list[nn.Module]]:
    """The models of each row, without values."""
    with torch.device("meta"):
        found: dict[str, list[nn.Module]] = {"Transformer": [TransformerModel(BASE)]}
        for name, configs in PUBLISHED.items():
            parsed = [parse_config(config, "hf") for config in configs]
            found[name] = [family.model(config) for family, config in parsed]
    return found


def _has(model: nn.Module, *kinds: type[nn.Module]) -> bool:
    return any(isinstance(module, kinds) for module in model.modules())


def _positions(model: nn.Module) -> str:
    if _has(model, RotaryEmbedding):
        return "解耦 RoPE" if _has(model, MLA) else "RoPE"
    return "可学习绝对" if _has(model, LearnedPositions) else "Sinusoidal 绝对" if _has(model, InterleavedPositions) else "–"


def _attention(model: Any, attention: nn.Module) -> str:
    if isinstance(attention, MLA):
        return "MLA"
    if isinstance(attention, Attention):
        grouped = "GQA" if attention.n_kv_heads < attention.n_heads else "MHA"
        return f"{grouped} + QK-Norm" if isinstance(attention.q_norm, RMSNorm) else grouped
    assert isinstance(attention, MHA)
    return "MHA" if model.new_cache() is not None else "MHA(双向)"


def _network(network: nn.Module) -> str:
    kinds = {FFN: "FFN", GatedFFN: "GatedFFN", MoE: "MoE", DeepSeekMoE: "DeepSeekMoE"}
    return kinds[type(network)]


def _activation(network: nn.Module) -> str:
    functions = {vars(module)["activation"] for module in network.modules() if "activation" in vars(module)}
    (function,) = functions
    return ACTIVATIONS[function]


def row(model: nn.Module) -> tuple[str, ...]:
    """Norm, its place, positions, attention, network and activation of a model; of its last layer, where layers differ."""
    layers: list[Any] = [module for module in model.modules() if isinstance(module, TransformerLayer | PreNormLayer)]
    last = layers[-1]
    pre = isinstance(last, PreNormLayer) or last.norm_first
    norm = type(last.attn_norm).__name__
    cells = (_positions(model), _attention(model, last.attn), _network(last.ffn), _activation(last.ffn))
    return norm, "Pre" if pre else "Post", *cells


def table() -> list[tuple[str, ...]]:
    """The rows; where models of one row differ, both are named."""
    found = []
    for name, variants in models().items():
        columns = zip(*(row(model) for model in variants), strict=True)
        cells = [" / ".join(dict.fromkeys(column)) for column in columns]
        found.append((name, *cells))
    return found
