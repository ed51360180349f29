"""What a path that is no checkpoint is, and which one is meant: other tools' layouts, caches, names on a hub."""

import os
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from weight_mapping.errors import MappingError, named
from weight_mapping.gguf_file import GGUFFile
from weight_mapping.hf_folder import HFFolder
from weight_mapping.json_file import oddity

_CONVERT = "convert it with the script that transformers has for its family, or take the hub's own copy"
_RESAVE = "load it with what wrote it, and save the model's state_dict as safetensors"
LAYOUTS = {
    "adapter_model.*": ("a PEFT adapter alone", "merge it into its base model and give that (merge_and_unload, save_pretrained)"),
    "consolidated*.pth": ("Meta's own layout", _CONVERT),
    "consolidated*.safetensors": ("Mistral's own layout", _CONVERT),
    "mp_rank_*": ("a part of a DeepSpeed or Megatron checkpoint", "join its parts with zero_to_fp32.py or Megatron's converter"),
    "rank_*": ("a part of a checkpoint of several ranks", "join its parts with the tool that wrote them"),
    "iter_*": ("a Megatron checkpoint", "convert it with Megatron's own converter to the hub's layout"),
    "*.distcp": ("a distributed checkpoint of torch", "join its parts with torch.distributed.checkpoint.format_utils"),
    "*.ckpt": ("a checkpoint of a trainer, as Lightning", _RESAVE),
    "tf_model.h5": ("TensorFlow's layout", "load it with transformers 4 (from_tf=True) and save it again"),
    "flax_model*.msgpack": ("Flax's layout", "load it with transformers 4 (from_flax=True) and save it again"),
    "*.onnx": ("an ONNX graph", "give the checkpoint that it was exported from"),
    "*.nemo": ("a NeMo archive", "convert it with NeMo's own script to the hub's layout"),
    "*.pt": ("a file of torch under another name", _RESAVE),
    "*.pth": ("a file of torch under another name", _RESAVE),
}
"""The names of files of other layouts, what they are of, and what to do."""


def meant(path: Path) -> Path:
    """The checkpoint that `path` stands for: the folder of one of its files, where that says all; else itself."""
    listing = path.name in (*HFFolder.LISTINGS, HFFolder.CONFIG)
    if not listing or oddity(path) is not None or not HFFolder.recognises(path.parent):
        return path
    if path.name == HFFolder.CONFIG or HFFolder.listing(path.parent) == path.name:
        return path.parent
    return path


def why_none(path: Path) -> MappingError:
    """What is at `path` instead of a checkpoint, and what to do."""
    what = oddity(path)
    if what == "missing":
        return MappingError(_missing(path), where=path)
    if what is None:
        return MappingError(_file(path), where=path)
    if what != "a folder":
        return MappingError(f"is {what}; give a checkpoint on this machine", where=path)
    return MappingError(_folder(path), where=path)


def _missing(path: Path) -> str:
    text = str(path)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", text) and not path.parent.exists():
        return "does not exist, and nothing is downloaded: fetch it with `hf download`, and give the folder that prints"
    return "does not exist; give a checkpoint on this machine"


def _file(path: Path) -> str:
    if fnmatchcase(path.name, "*.safetensors") or path.name in HFFolder.LISTINGS or path.name.endswith(".bin"):
        other = HFFolder.listing(path.parent)
        if other:
            return f"is not what its folder is read by, {other} is; give the folder {path.parent}"
        return f"is one file of a checkpoint; give a folder with it as {HFFolder.WEIGHTS}, and its {HFFolder.CONFIG}"
    of = _layout(path.name)
    return f"is {of[0]}: {of[1]}" if of else f"is neither {_WANTED} nor a GGUF file"


def _layout(name: str) -> tuple[str, str] | None:
    return next((of for pattern, of in LAYOUTS.items() if fnmatchcase(name, pattern)), None)


_WANTED = f"a folder with {HFFolder.WEIGHTS}, {HFFolder.OLD_WEIGHTS} or an index of either"


def _folder(path: Path) -> str:
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        return f"cannot be read ({error.strerror}); see who may read it"
    for name in HFFolder.LISTINGS:
        if name in names:
            return f"{name} in it is {oddity(path / name)}, not a file; put the checkpoint's own there"
    snapshots = sorted((path / "snapshots").glob("*")) if "snapshots" in names else []
    if snapshots:
        return f"is a repository in the hub's cache; give what lies in it: {' or '.join(map(str, snapshots[:2]))}"
    files = [name for name in names if GGUFFile.recognises(path / name)]
    if files:
        return f"holds GGUF files; give one of them: {', '.join(map(named, files[:3]))}{' …' if files[3:] else ''}"
    found = next(_found(names), None)
    if found:
        name, (what, todo) = found
        return f"holds {named(name)}, {what}, and nothing that is read here: {todo}"
    single = [name for name in names if name.endswith((".safetensors", ".bin"))]
    if single:
        return f"holds {named(single[0])}, and is read by {HFFolder.WEIGHTS} or an index; rename it, or fetch the index"
    return f"is neither {_WANTED} nor a .gguf file"


def _found(names: list[str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Those of another layout, in the order of the table."""
    for pattern, of in LAYOUTS.items():
        yield from ((name, of) for name in names if fnmatchcase(name, pattern))
