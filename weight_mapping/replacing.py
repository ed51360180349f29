"""A folder written beside another and put in its place at once, so that whoever reads sees the one or the other.

The new folder is made in a *stage*, `.saving-NAME-XXXXXXXX` beside the folder NAME. While somebody writes, the stage is locked;
one that nobody locks was left by a run that was killed, and the next save clears it away. Two folders change places in one
step of the file system where it can do that (Linux and macOS, on local disks). Where it cannot, the old one is renamed
into the stage and the new one out of it: in between there is only the stage, and `readable` finds the old one there.
"""

import ctypes
import os
import re
import secrets
import shutil
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import EINVAL, ENOSYS, ENOTSUP
from pathlib import Path

from weight_mapping.errors import MappingError

try:
    import fcntl
except ImportError:  # Windows: there no stage is known to be left, and none is cleared away
    fcntl = None

_NEW, _OLD = "new", "old"


@contextmanager
def replacing(path: Path, is_ours: Callable[[str], bool]) -> Iterator[Path]:
    """A new, empty folder to write to, which takes the place of `path` when the block ends well.

    is_ours: the names that are replaced. All else that lies in `path` goes on lying there. Raises MappingError where the
    folder cannot be replaced as a whole and has something to lose.
    """
    path = path.resolve()  # a link to a folder goes on being one
    path.parent.mkdir(parents=True, exist_ok=True)
    _clear(path.parent, path.name)
    existed = path.exists()
    beside = not existed or (not os.path.ismount(path) and os.access(path.parent, os.W_OK))
    if not beside and any(is_ours(name) for name in os.listdir(path)):
        why = "it is a mount point, or the folder around it is read-only"
        raise MappingError(f"cannot be replaced as a whole ({why}); save to another folder", where=path)
    with _stage(path.parent if beside else path, path.name) as stage:
        new = stage / _NEW
        new.mkdir()
        yield new
        if not beside:
            for file in sorted(new.iterdir()):  # in the order of the alphabet, so that what lists the others comes last
                os.rename(file, path / file.name)
        elif not existed:
            os.rename(new, path)  # which fails when somebody has put another there
        else:
            _keep_others(path, new, is_ours)
            _swap(new, path, stage, is_ours)


class Place:
    """What lies at a path now. A folder is held open, for the file system gives the number of one that is gone to the next."""

    def __init__(self, path: str | Path):
        self._path, self._handle, self._folder = path, None, os.path.isdir(path)
        with suppress(OSError, ValueError):  # as on Windows, where no folder can be opened
            if self._folder:
                self._handle = os.open(path, os.O_RDONLY)
                weakref.finalize(self, os.close, self._handle)

    def unchanged(self) -> bool:
        """Whether it lies there still, and no other folder in its place."""
        if self._handle is None:
            return os.path.isdir(self._path) == self._folder
        try:
            return os.path.samestat(os.fstat(self._handle), os.stat(self._path))
        except FileNotFoundError:
            return False


def readable(path: Path) -> Path:
    """`path`, or where its folder lies when a run was killed between the two renames."""
    if os.path.lexists(path):
        return path
    with suppress(OSError, ValueError):  # ValueError: a null character in the name
        real = path.resolve()
        return next((stage / _OLD for stage in _stages(real.parent, real.name) if (stage / _OLD).is_dir()), path)
    return path


def is_stage(name: str) -> bool:
    """Whether a file of a folder is such a stage, or one of earlier versions of this package."""
    return name.startswith(".saving-")


def _stages(folder: Path, name: str) -> list[Path]:
    wanted = re.compile(rf"\.saving-{re.escape(name)}-[0-9a-f]{{8}}")
    return [folder / found for found in os.listdir(folder) if wanted.fullmatch(found)]


def _keep_others(path: Path, new: Path, is_ours: Callable[[str], bool]) -> None:
    """Give the new folder the mode of the old one and all in it that is not replaced, as links: both have it."""
    for name in os.listdir(path):
        if not is_ours(name) and not is_stage(name):
            _link(path / name, new / name)
    shutil.copystat(path, new)


def _link(source: Path, target: Path) -> None:
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, target, symlinks=True, copy_function=_link_file)
    else:
        _link_file(source, target)


def _link_file(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # no links on this file system
        shutil.copy2(source, target, follow_symlinks=False)


def _swap(new: Path, path: Path, stage: Path, is_ours: Callable[[str], bool]) -> None:
    inside = os.path.samestat(os.stat(path), os.stat("."))
    if _exchange(new, path):
        left = new
    else:
        left = stage / _OLD
        os.rename(path, left)
        os.rename(new, path)
    if inside:
        os.chdir(path)  # else this process would stand in a folder that is about to go
    for name in set(os.listdir(left)) - set(os.listdir(path)):
        if not is_ours(name) and not is_stage(name):  # it came while the new one was being made
            os.rename(left / name, path / name)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change places in one step. False where the system or the file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
    sys.audit("os.rename", str(one), str(other), -1, -1)  # as Python's own renames do
    names = os.fsencode(one), os.fsencode(other)
    if hasattr(libc, "renameat2"):
        failed = libc.renameat2(-100, names[0], -100, names[1], ctypes.c_uint(2))  # AT_FDCWD, RENAME_EXCHANGE
    elif hasattr(libc, "renamex_np"):
        failed = libc.renamex_np(*names, ctypes.c_uint(2))  # RENAME_SWAP
    else:
        return False
    error = ctypes.get_errno()
    if failed and error not in (EINVAL, ENOSYS, ENOTSUP):
        raise OSError(error, os.strerror(error), str(other))
    return not failed


@contextmanager
def _stage(folder: Path, name: str) -> Iterator[Path]:
    """A new stage, locked, and gone in the end."""
    while True:
        stage = folder / f".saving-{name}-{secrets.token_hex(4)}"
        stage.mkdir()
        with _locked(stage) as ours:
            if not ours:  # somebody took it for one that was left
                continue
            try:
                yield stage
            finally:
                shutil.rmtree(stage, ignore_errors=True)
            return


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Whether this process has the folder to itself, for as long as the block lasts."""
    if fcntl is None:
        yield True
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder.exists() and os.path.samestat(os.fstat(handle), os.stat(folder))
    except BlockingIOError:
        yield False
    finally:
        os.close(handle)


def _clear(folder: Path, name: str) -> None:
    """Clear away the stages of `folder / name` that nobody writes, those inside it too.

    An old folder without its successor goes back.
    """
    if fcntl is None:
        return
    here = folder / name
    inside = [here / found for found in os.listdir(here) if is_stage(found)] if here.is_dir() else []
    for stage in [*_stages(folder, name), *inside]:
        with _locked(stage) as ours:
            if ours:
                if (stage / _OLD).is_dir() and not os.path.lexists(here):
                    os.rename(stage / _OLD, here)
                shutil.rmtree(stage, ignore_errors=True)
