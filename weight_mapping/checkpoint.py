"""Checkpoints as read-only mappings from names to tensors, whatever container they lie in. Nothing is unpickled.

One more container is one more class in `CONTAINERS`.
"""

from pathlib import Path

from weight_mapping.container import Checkpoint
from weight_mapping.errors import MappingError
from weight_mapping.gguf_file import GGUFFile
from weight_mapping.hf_folder import HFFolder
from weight_mapping.paths import meant, why_none
from weight_mapping.replacing import readable

CONTAINERS: tuple[type[Checkpoint], ...] = (HFFolder, GGUFFile)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open the checkpoint at `path`: an HF folder or a GGUF file, or the file of a folder that says which tensors are in it.
    Only lists of names are read.

    Raises MappingError when it is none of them, or is incomplete.
    """
    path = meant(readable(Path(path)))
    for container in CONTAINERS:
        if container.recognises(path):
            try:
                return container(path)
            except OSError as error:
                raise MappingError(f"cannot be read ({error.strerror}); see who may read it", where=path) from error
    raise why_none(path)
