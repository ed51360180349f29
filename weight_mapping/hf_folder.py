"""The hub's container: a folder of a config.json and of safetensors files, or of the .bin files from before them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from torch import Tensor

from weight_mapping.bin_file import BinFile
from weight_mapping.container import Checkpoint, Value, read_json
from weight_mapping.errors import MappingError, MissingTensorError, named
from weight_mapping.json_file import oddity
from weight_mapping.replacing import Place
from weight_mapping.safetensors_file import SafetensorsFile

Shard: TypeAlias = SafetensorsFile | BinFile


class HFFolder(Checkpoint):
    """A folder with config.json and, in model.safetensors or in the shards that its index names, the tensors.

    Where there are both, model.safetensors counts, as for transformers; then pytorch_model.bin, or its shards. A name may be
    a symbolic link, as all are in the hub's cache, but the index names nothing outside the folder.
    """

    layout = "hf"
    WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
    OLD_WEIGHTS, OLD_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
    LISTINGS = (WEIGHTS, INDEX, OLD_WEIGHTS, OLD_INDEX)

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return cls.listing(path) is not None

    @classmethod
    def listing(cls, path: Path) -> str | None:
        """The file of the folder that says which tensors are in it."""
        return next((name for name in cls.LISTINGS if oddity(path / name) is None), None)

    def __init__(self, path: Path):
        super().__init__(path)
        self._place = Place(path)
        self._opened: dict[str, Shard] = {}
        listing = self.listing(path)
        if listing is None:
            raise MappingError("was replaced while it was being read; load it again", where=path)
        self._listing = listing
        if self._listing in (self.WEIGHTS, self.OLD_WEIGHTS):
            self._files = dict.fromkeys(self._shard(self._listing), self._listing)
        else:
            self._files = self._read_index()
        self._listed: dict[str, list[str]] = {}
        for name, file in self._files.items():
            self._listed.setdefault(file, []).append(name)

    @property
    def config_file(self) -> Path:
        return self.path / self.CONFIG

    @property
    def config(self) -> Mapping[str, Value]:
        found = read_json(self.config_file)
        self._check_folder()
        return found

    def file(self, name: str) -> Path:
        return self.path / self._files.get(name, self._listing)

    def header(self, name: str) -> Tensor:
        return self._holder(name).header(name)

    def __getitem__(self, name: str) -> Tensor:
        return self._holder(name)[name]

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def _holder(self, name: str) -> Shard:
        if name not in self._files:
            raise self._missing(name)
        return self._shard(self._files[name])

    def _shard(self, file: str) -> Shard:
        """A file, opened when it is first needed and held against what the index says of it."""
        if file not in self._opened:
            kind = BinFile if file.endswith(".bin") else SafetensorsFile
            shard = kind(self.path / file)
            self._check_folder()
            self._opened[file] = shard
            if file != self._listing:
                self._check_shard(file, shard)
        return self._opened[file]

    def _check_folder(self) -> None:
        """Raise unless what was just read lies in the folder that was opened: `save` puts a new one in its place."""
        if not self._place.unchanged():
            raise MappingError("was replaced while it was being read; load it again", where=self.path)

    def _check_shard(self, file: str, shard: Shard) -> None:
        for name in self._listed[file]:
            if name not in shard:
                why = f"is missing, and {self._listing} puts it here"
                raise MissingTensorError(f"tensor {named(name)} {why}; fetch both again", where=shard.path)
        for name in shard:
            if self._files.get(name) != file:
                why = f"is unexpected, {self._listing} does not put it here"
                raise MappingError(f"tensor {named(name)} {why}; fetch both again", where=shard.path)

    def _read_index(self) -> dict[str, str]:
        index = self.path / self._listing
        files = read_json(index).get("weight_map")
        if not isinstance(files, dict):
            raise MappingError("has no 'weight_map' from tensors to files; fetch it again", where=index)
        out: dict[str, str] = {}
        for name, file in files.items():
            if not isinstance(file, str) or not _is_name(file):
                why = f"in {named(file)}, which is no name of a file in its folder; fetch it again from a source you trust"
                raise MappingError(f"puts tensor {named(name)} {why}", where=index)
            out[name] = file
        for file in dict.fromkeys(out.values()):
            if what := oddity(self.path / file):
                raise MappingError(f"names the shard {named(file)}, which is {what}; fetch it", where=index)
        return out


def _is_name(file: str) -> bool:
    """Whether a file of a folder can be called so, on any system."""
    return file not in ("", ".", "..") and not set(file) & set("/\\\0") and len(file.encode("utf-8", "replace")) <= 255
