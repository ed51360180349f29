"""A save that is killed at any step of the file system leaves the old checkpoint or the new one, not in the way of the next."""

import os
import shutil
import signal
import stat
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from parity_tests.tiny_checkpoints import CONFIG, same, tensors_of, write_folder, write_shards
from weight_mapping import MappingError, load, replacing, save
from weight_mapping.loading import parameters_of
from weight_mapping.replacing import readable

OTHER = {**CONFIG, "intermediate_size": 56, "num_hidden_layers": 3}
"""Neither config goes with the other's weights, so that a mixture of the two shows."""
OTHERS = {name: t + 1 for name, t in tensors_of(OTHER).items()}
STEPS = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.utime")
SMALL = 30_000


def weights(folder: Path) -> dict[str, Tensor]:
    return {name: t.detach().clone() for name, t in parameters_of(load(folder)).items()}


def new_model(folder: Path) -> nn.Module:
    """A model with the other config, read from beside."""
    return load(write_folder(folder, OTHER, OTHERS))


def killed(action: Callable[[], None], after: int, within: Path) -> bool:
    """Run `action` in a process of its own that is killed before its step number `after`. Whether it came so far."""
    child = os.fork()
    if child == 0:
        left = after

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            opened = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wxa+")
            if event in STEPS or (opened and str(arguments[0]).startswith(str(within))):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            action()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def old_checkpoint(folder: Path, shards: bool) -> None:
    (write_shards if shards else write_folder)(folder, CONFIG, tensors_of(CONFIG))
    (folder / "tokenizer.json").write_text("somebody's")
    (folder / "runs").mkdir()
    (folder / "runs" / "log").write_text("somebody's, too")


def no_exchange(*_: object) -> bool:
    return False


@pytest.mark.parametrize(
    ("before", "after", "exchange"),
    [
        ("many", "many", True),
        ("many", "one", True),
        ("one", "many", True),
        ("none", "many", True),
        ("many", "one", False),
    ],
    ids=["many-many", "many-one", "one-many", "none-many", "many-one-by-two-renames"],
)
def test_a_save_that_is_killed_at_any_step(
    before: str, after: str, exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:
        monkeypatch.setattr(replacing, "_exchange", no_exchange)
    limits = {"many": SMALL, "one": 10**9}
    model, new, folder = new_model(tmp_path / "other"), weights(tmp_path / "other"), tmp_path / "here" / "hf"
    old_model = load(write_folder(tmp_path / "old", CONFIG, tensors_of(CONFIG)))
    old = weights(tmp_path / "old")
    if before != "none":
        old_checkpoint(folder, before == "many")
    seen, step = {"none": 0, "old": 0, "new": 0}, 0
    while killed(lambda: save(model, folder, max_shard_size=limits[after], overwrite=True), step, tmp_path):
        state = what_is_there(folder, old, new)
        seen[state] += 1
        if state != "none" and exchange and step % 5 == 0:
            theirs = AutoModelForCausalLM.from_pretrained(folder).state_dict()
            assert same(theirs, on_hub(state))
        save(old_model, folder, max_shard_size=limits.get(before, SMALL), overwrite=True)  # whatever was left
        assert not list(tmp_path.rglob(".saving-*"))
        if before == "none":
            shutil.rmtree(folder)
        step += 1
    assert seen["none" if before == "none" else "old"] > 5
    assert seen["new"]
    assert len([state for state in seen.values() if state]) == 2
    assert what_is_there(folder, old, new) == "new"
    assert not list(tmp_path.rglob(".saving-*"))


def what_is_there(folder: Path, old: dict[str, Tensor], new: dict[str, Tensor]) -> str:
    """Which checkpoint, a whole one; that the other files of the folder are there is asserted."""
    if not readable(folder).exists():
        return "none"
    found = weights(folder)
    state = next(name for name, each in {"old": old, "new": new}.items() if same(found, each))
    if (readable(folder) / "runs").exists() or state == "old":
        assert (readable(folder) / "tokenizer.json").read_text() == "somebody's"
        assert (readable(folder) / "runs" / "log").read_text() == "somebody's, too"
    return state


def on_hub(state: str) -> dict[str, Tensor]:
    return tensors_of(CONFIG) if state == "old" else OTHERS


def test_what_earlier_versions_left_is_cleared_away(tmp_path: Path) -> None:
    model = new_model(tmp_path / "other")
    (tmp_path / "hf" / ".saving-x7d_a1").mkdir(parents=True)
    (tmp_path / "hf" / ".saving-x7d_a1" / "config.json").write_text("{")
    save(model, tmp_path / "hf")
    assert {file.name for file in (tmp_path / "hf").iterdir()} == {"config.json", "model.safetensors"}


def test_a_stage_that_somebody_writes_is_left_alone(tmp_path: Path) -> None:
    model = new_model(tmp_path / "other")
    with replacing.replacing(tmp_path / "hf", lambda _: True) as theirs:
        (theirs / "config.json").write_text("{}")
        save(model, tmp_path / "hf")
        assert (theirs / "config.json").exists()
        (tmp_path / "hf").rename(tmp_path / "away")
    assert (tmp_path / "hf" / "config.json").read_text() == "{}"


def test_links_modes_and_the_place_one_stands_in_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, folder = new_model(tmp_path / "other"), tmp_path / "real"
    old_checkpoint(folder, shards=True)
    (folder / "link").symlink_to("nowhere")
    folder.chmod(0o750)
    (tmp_path / "hf").symlink_to("real")
    monkeypatch.chdir(folder)
    save(model, tmp_path / "hf", overwrite=True)
    assert (tmp_path / "hf").is_symlink()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    assert os.readlink(folder / "link") == "nowhere"
    assert Path.cwd() == folder
    assert same(weights(Path()), weights(tmp_path / "other"))


def test_where_a_folder_cannot_be_exchanged_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, folder = new_model(tmp_path / "other"), tmp_path / "hf"
    folder.mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda _: True)
    save(model, folder)  # nothing is there to replace
    assert {file.name for file in folder.iterdir()} == {"config.json", "model.safetensors"}
    with pytest.raises(MappingError, match=r"hf: cannot be replaced as a whole \(it is a mount point, or "):
        save(model, folder, overwrite=True)
    assert same(weights(folder), weights(tmp_path / "other"))


def test_saving_to_a_file(tmp_path: Path) -> None:
    model = new_model(tmp_path / "other")
    (tmp_path / "file").write_text("somebody's")
    with pytest.raises(MappingError, match="file: is a file; give a folder"):
        save(model, tmp_path / "file", overwrite=True)


def test_reading_while_it_is_replaced(tmp_path: Path) -> None:
    """Every read gives the one or the other. `load` begins anew up to nine times, so the writer replaces what is read no more
    often than that before it waits for the reader, however slow the machine lets that be.
    """
    new_one, folder = new_model(tmp_path / "other"), tmp_path / "hf"
    models = [new_one, load(write_folder(tmp_path / "old", CONFIG, tensors_of(CONFIG)))]
    both = [weights(tmp_path / name) for name in ("other", "old")]
    save(models[1], folder)
    done, tell = os.pipe()
    reader = os.fork()
    if reader == 0:
        code = 1
        try:
            for _ in range(30):
                found = weights(folder)
                if not any(same(found, each) for each in both):
                    os._exit(2)
                os.write(tell, b".")
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(tell)
    turn = 0
    while os.read(done, 1):  # a read is done; nothing comes once the reader has ended
        for _ in range(1 + turn % 6):
            save(models[turn % 2], folder, max_shard_size=SMALL if turn % 3 else 10**9, overwrite=True)
            turn += 1
    os.close(done)
    assert os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1]) == 0
    assert turn > 30
