"""A model of the reference as a checkpoint in the layout of the hub."""

import json
import os
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import reduce
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from weight_mapping.config import is_harmless, render_config
from weight_mapping.container import Value
from weight_mapping.errors import MappingError, named
from weight_mapping.hf_folder import HFFolder
from weight_mapping.json_file import oddity
from weight_mapping.loading import family_of, parameters_of, plan_for
from weight_mapping.replacing import is_stage, replacing


def save(
    model: nn.Module,
    path: str | Path,
    *,
    extra: Mapping[str, Value] | None = None,
    max_shard_size: int = 5 * 10**9,
    overwrite: bool = False,
) -> None:
    """Write `model` to the folder `path` as safetensors and a config.json with the keys of transformers 4.

    extra: keys for config.json that change no result, as token ids. max_shard_size: bytes; more go to several files
    with an index. overwrite: replace the checkpoint in a folder that is not empty, leaving its other files. Whoever reads
    sees the old checkpoint or the new one, whenever this is stopped. Raises MappingError when the folder is not empty, when
    `extra` would change the maths, or when the model has no family here or no values.
    """
    path, (family, config) = Path(path), family_of(model)
    parameters = {name: t.detach() for name, t in parameters_of(model).items()}
    for name, tensor in parameters.items():
        if tensor.is_meta:
            raise MappingError(f"parameter {named(name)} is on the meta device, so there is nothing to save")
    trained = parameters_of(model, buffers=False)  # a buffer may be kept in float32 beside weights in bfloat16
    dtype = reduce(torch.promote_types, (t.dtype for t in trained.values()))
    written = render_config(family, config, dtype)
    for key in extra or {}:
        if key in written or not is_harmless(key, "hf", family):
            raise MappingError(f"extra key {key!r} is not one that changes no result; leave it out")
    if oddity(path) not in (None, "missing", "a folder") or path.is_file():
        raise MappingError(f"is {oddity(path) or 'a file'}; give a folder", where=path)
    if path.exists() and not overwrite and not all(map(is_stage, os.listdir(path))):
        raise MappingError("is not empty; give another folder, or overwrite=True", where=path)

    tensors = plan_for(family, config, "hf").backward(parameters)
    with replacing(path, _is_ours) as folder:
        _write_tensors(tensors, folder, max_shard_size)
        _write_json(folder / HFFolder.CONFIG, {**written, **(extra or {})})


def _is_ours(name: str) -> bool:
    """Whether a file is part of such a checkpoint. One left beside another would be read before it, or with it."""
    shards = fnmatchcase(name, "model-*-of-*.safetensors")
    return shards or name in (HFFolder.WEIGHTS, HFFolder.INDEX, HFFolder.CONFIG)


def _write_tensors(tensors: Mapping[str, Tensor], folder: Path, max_shard_size: int) -> None:
    shards = list(_shards(tensors, max_shard_size))
    if len(shards) == 1:
        _save_file(shards[0], folder / HFFolder.WEIGHTS)
        return
    files: dict[str, str] = {}
    for i, shard in enumerate(shards, start=1):
        name = f"model-{i:05}-of-{len(shards):05}.safetensors"
        _save_file(shard, folder / name)
        files |= dict.fromkeys(shard, name)
    size = sum(t.nbytes for t in tensors.values())
    _write_json(folder / HFFolder.INDEX, {"metadata": {"total_size": size}, "weight_map": dict(files)})


def _shards(tensors: Mapping[str, Tensor], limit: int) -> Iterator[dict[str, Tensor]]:
    """In order, as many tensors to a shard as fit into `limit` bytes, and one at least."""
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        if shard and size + tensor.nbytes > limit:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.nbytes
    yield shard


def _save_file(tensors: Mapping[str, Tensor], file: Path) -> None:
    # a copy of each: safetensors takes no views, and writes what lies in memory rather than what a stride says
    own = {name: t.cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
    save_file(own, file, metadata={"format": "pt"})


def _write_json(file: Path, content: Mapping[str, Value]) -> None:
    file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
