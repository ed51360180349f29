"""Tiny checkpoints for the tests of the weight mapping, written without it: an HF folder, shards, a Llama's GGUF file."""

import json
from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 37,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
}


VARIANTS: dict[str, dict[str, Any]] = {
    "gqa": CONFIG,
    "mha": {**CONFIG, "num_key_value_heads": 6},
    "mqa-12-layers": {**CONFIG, "num_key_value_heads": 1, "num_hidden_layers": 12},
    "biased": {**CONFIG, "attention_bias": True, "mlp_bias": True},
    "tied": {**CONFIG, "tie_word_embeddings": True},
}

DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "vocab_size": 37,
    "hidden_size": 24,
    "intermediate_size": 40,
    "moe_intermediate_size": 28,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 13,
    "kv_lora_rank": 11,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 8,
    "v_head_dim": 5,
    "n_routed_experts": 12,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
}

DEEPSEEK_VARIANTS: dict[str, dict[str, Any]] = {
    "experts": DEEPSEEK,
    "no-q-lora": {**DEEPSEEK, "q_lora_rank": None, "first_k_dense_replace": 0},
    "biased": {**DEEPSEEK, "attention_bias": True, "n_shared_experts": 1, "norm_topk_prob": False},
    "half-rope-tied": {**DEEPSEEK, "rope_interleave": False, "tie_word_embeddings": True},
}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Equal names, dtypes and bits."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def empty_model(config: Mapping[str, Any]) -> PreTrainedModel:
    """What transformers makes of this config, on the meta device."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**json.loads(json.dumps(config))))


def in_memory(model: PreTrainedModel) -> dict[str, Tensor]:
    """A model's parameters and stored buffers. What is tied is listed once."""
    state = model.state_dict()
    return {name: t for name, t in [*model.named_parameters(), *model.named_buffers()] if name in state}


MIXTRALS_OWN = {".mlp.": ".block_sparse_moe.", ".gate_proj.": ".w1.", ".up_proj.": ".w3.", ".down_proj.": ".w2."}
"""What its files call the parts of a mixture."""


def on_disk(tensors: Mapping[str, Tensor], model_type: str = "") -> dict[str, Tensor]:
    """The same as the hub has it, experts one by one."""
    own = MIXTRALS_OWN if model_type == "mixtral" else {}
    apart = (pair for item in tensors.items() for pair in _experts_apart(*item))
    return {reduce(lambda name, old: name.replace(old, own[old]), own, name): t for name, t in apart}


def _experts_apart(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    experts, _, kind = name.rpartition(".")
    if not experts.endswith("mlp.experts"):
        yield name, tensor
        return
    for i, expert in enumerate(tensor):
        parts = expert.chunk(2) if kind == "gate_up_proj" else [expert]
        for part, its_name in zip(parts, ["gate_proj", "up_proj"] if len(parts) == 2 else [kind], strict=True):
            yield f"{experts}.{i}.{its_name}.weight", part


def tensors_of(config: Mapping[str, Any], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Random values under the names and shapes that transformers gives this config. Correction biases are in float32."""
    generator = torch.Generator().manual_seed(0)
    values = {n: torch.randn(t.shape, generator=generator) for n, t in on_disk(in_memory(empty_model(config))).items()}
    return {name: t if name.endswith("_correction_bias") else t.to(dtype) for name, t in values.items()}


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """An HF folder with one file."""
    write_config(folder, config)
    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_shards(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], n: int = 3) -> Path:
    """An HF folder with `n` shards and their index."""
    write_config(folder, config)
    names, files = list(tensors), {}
    for i in range(n):
        file = f"model-{i + 1:05}-of-{n:05}.safetensors"
        save_file({name: tensors[name] for name in names[i::n]}, folder / file, metadata={"format": "pt"})
        files |= dict.fromkeys(names[i::n], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return folder


def side_by_side(rows: Tensor, n_heads: int) -> Tensor:
    """Rows i and i + e/2 of each head, moved next to each other: how a Llama's q and k lie in GGUF."""
    width = len(rows) // n_heads
    order = [
        head * width + half * width // 2 + i for head in range(n_heads) for i in range(width // 2) for half in (0, 1)
    ]
    return rows[order]


def write_gguf(
    file: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    permute: bool = True,
    quantise: gguf.GGMLQuantizationType | None = None,
    extra: Mapping[str, Tensor] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """A GGUF file under the names of the gguf package. permute: rows of q and k as a Llama has them there. quantise: the type
    of the matrices. metadata: more, or others.
    """
    name, width = config["model_type"], config.get("head_dim")
    said = {
        f"{name}.vocab_size": config["vocab_size"],
        f"{name}.embedding_length": config["hidden_size"],
        f"{name}.feed_forward_length": config["intermediate_size"],
        f"{name}.block_count": config["num_hidden_layers"],
        f"{name}.attention.head_count": config["num_attention_heads"],
        f"{name}.attention.head_count_kv": config["num_key_value_heads"],
        f"{name}.attention.key_length": width,
        f"{name}.attention.value_length": width,
        f"{name}.rope.dimension_count": width,
        f"{name}.context_length": config["max_position_embeddings"],
        f"{name}.rope.freq_base": config["rope_theta"],
        f"{name}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "tokenizer.ggml.tokens": ["<s>", "</s>"],
        **(metadata or {}),
    }
    writer = gguf.GGUFWriter(file, name)
    add: dict[type, Any] = {
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in said.items():
        if value is not None:
            add[type(value)](key, value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[name.upper()], config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in tensors.items():
        module = name.split(".")[-2]
        rows = side_by_side(tensor, heads[module]) if permute and module in heads else tensor
        array = rows.contiguous().numpy()
        if quantise and array.ndim == 2:
            array = gguf.quantize(array, quantise)
        its_name = names.get_name(name, (".weight", ".bias"))
        assert its_name is not None, name
        writer.add_tensor(its_name, array, raw_dtype=quantise if quantise and tensor.ndim == 2 else None)
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
