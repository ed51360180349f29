"""Checkpoints as read-only mappings from names to tensors, whatever container they lie in. Nothing but tensors is unpickled.

One more container is one more class in `CONTAINERS`.
"""

from pathlib import Path

from weight_mapping.container import Checkpoint
from weight_mapping.diagnosis import ADAPTER_FILES, MERGE
from weight_mapping.errors import MappingError
from weight_mapping.gguf_file import GGUFFile
from weight_mapping.hf_folder import HFFolder
from weight_mapping.replacing import readable

CONTAINERS: tuple[type[Checkpoint], ...] = (HFFolder, GGUFFile)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open the checkpoint at `path`: an HF folder or a GGUF file. Only lists of names are read.

    Raises MappingError when it is neither, or is incomplete.
    """
    path = readable(Path(path))
    for container in CONTAINERS:
        if container.recognises(path):
            try:
                return container(path)
            except OSError as error:
                raise MappingError(f"cannot be read ({error.strerror}); see who may read it", where=path) from error
    if not path.exists():
        raise MappingError("does not exist; give a checkpoint on this machine", where=path)
    if any((path / name).is_file() for name in ADAPTER_FILES):
        raise MappingError(f"holds an adapter alone: {MERGE}", where=path)
    folder = f"a folder with {HFFolder.WEIGHTS}, {HFFolder.OLD_WEIGHTS} or an index of either"
    raise MappingError(f"is neither {folder} nor a .gguf file", where=path)
