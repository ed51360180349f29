"""The jobs by name, and how their environments are set up: by a stand-in for pip, which leaves what a real one would."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from parity_tests.jobs import CHECKOUT, environments, family, run
from parity_tests.jobs.commands import COMMANDS, VARIABLES, help_lines
from parity_tests.jobs.environments import INSTALLING, Environment, Setup, SetupError
from parity_tests.jobs.make import LINT, Make, main

pytestmark = pytest.mark.checkout


def test_every_list_of_the_jobs_is_the_same() -> None:
    targets = re.search(r"^TARGETS = (.*)$", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    assert targets.group(1).split() == list(COMMANDS)
    assert list(run.JOBS) == [name for name, command in COMMANDS.items() if not command.checkout]
    readme = (CHECKOUT / "README.md").read_text()
    jobs = help_lines()[: len(COMMANDS)]
    assert "\n".join(f"    {line}" for line in jobs) in readme


def test_make_hands_over_every_variable() -> None:
    exported = re.search(r"^export (.*)$", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)
    assert exported is not None
    assert set(exported.group(1).split()) == {name.split("=")[0] for name in VARIABLES} | {"N", "NAME", "LIKE"}


def test_help_needs_nothing() -> None:
    """No package: not the ones that it would install, and no file of its own left behind."""
    command = [sys.executable, "-S", "-B", "-m", "parity_tests.jobs.make", "help"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.stdout.splitlines() == help_lines()


WRONG = {
    "no-version": ("parity", {"TRANSFORMERS": "newest"}, "TRANSFORMERS=newest is no version number such as 4.57.6."),
    "not-for-lint": ("lint", {"TRANSFORMERS": "5.0.0"}, r"TRANSFORMERS is for make parity, .*, not for make lint."),
    "two": ("parity", {"TRANSFORMERS": "5.0.0", "PYTHON": "python"}, "give one of them."),
    "no-baseline": ("parity", {"BASELINE": "none.txt"}, "there is no file .*/none.txt to take the versions from."),
    "no-name": ("family", {"NAME": "Qwen-4"}, "NAME=Qwen-4 is no model_type such as qwen3_moe"),
    "like-nothing": ("family", {"NAME": "granite", "LIKE": "lama"}, "LIKE=lama is no family; name one of"),
    "no-python": ("parity", {"PYTHON": "no-such-python"}, "PYTHON=no-such-python is not one that runs."),
}


@pytest.mark.parametrize(("target", "variables", "says"), WRONG.values(), ids=WRONG)
def test_what_cannot_begin_says_why(target: str, variables: dict[str, str], says: str, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=says):
        Make(target, variables, tmp_path).run()


def test_it_is_said_in_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSFORMERS", "newest")
    assert main(["parity"]) == 2
    assert capsys.readouterr().err == "hf-parity: TRANSFORMERS=newest is no version number such as 4.57.6.\n"


def test_what_the_users_environment_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Make("test", {"PYTHON": sys.executable}).interpreter() == sys.executable
    monkeypatch.setattr(environments, "missing", lambda python, wanted: [each for each in wanted if "ruff" in each])
    monkeypatch.setattr("parity_tests.jobs.make.missing", environments.missing)
    assert Make("parity", {"PYTHON": sys.executable}).interpreter() == sys.executable
    with pytest.raises(SetupError, match=r"has no ruff\S*; to install: .* -m pip install 'ruff"):
        Make("test", {"PYTHON": sys.executable}).interpreter()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "fixtures").mkdir()
    (tmp_path / "fixtures/baseline.txt").write_text("torch==1\n")
    (tmp_path / "pyproject.toml").write_text("")
    return tmp_path


class Pip:
    """Stands in for an installer: counts, and leaves a package behind."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Sequence[str]]] = []

    def __call__(self, environment: Environment, name: str, holds: str, arguments: Sequence[str]) -> None:
        self.calls.append((environment.folder.name, arguments))
        (environment.packages / f"package_{len(self.calls)}-1.dist-info").mkdir()
        environment.stamp.write_text(f"{holds}\n")

    def setup(self, root: Path, transformers: str = "") -> Setup:
        return Setup(root / "fixtures/baseline.txt", transformers, root, self)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    """And environments are made without a pip of their own, which takes seconds."""
    create = Environment.create
    monkeypatch.setattr(Environment, "create", lambda self, python, *options: create(self, python, "--without-pip"))
    return Pip()


def test_an_environment_is_made_once_and_again_when_its_versions_change(checkout: Path, pip: Pip) -> None:
    env, again = (pip.setup(checkout).environment() for _ in range(2))
    assert env == again
    assert env.runs("import sys; assert sys.version_info >= (3, 11)")
    assert [name for name, _ in pip.calls] == [".venv"]
    (checkout / "fixtures/baseline.txt").write_text("torch==2\n")
    pip.setup(checkout).environment()
    assert len(pip.calls) == 2


def test_another_release_sees_the_first_environment_and_leaves_it_alone(checkout: Path, pip: Pip) -> None:
    env, again = (pip.setup(checkout, "4.57.6").environment() for _ in range(2))
    assert env == again
    assert [name for name, _ in pip.calls] == [".venv", ".venv-transformers-4.57.6"]
    assert pip.calls[1][1] == ["transformers==4.57.6"]
    common = pip.setup(checkout).environment()
    (common.packages / "here.py").write_text("")
    (checkout / "there.py").write_text("")
    assert env.runs("import here, there")
    (common.packages / "another-1.dist-info").mkdir()
    pip.setup(checkout, "4.57.6").environment()
    assert len(pip.calls) == 3, "it is made anew when the first holds something else"


def test_an_interrupted_installation_is_made_anew(
    checkout: Path, pip: Pip, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = pip.setup(checkout).environment()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    env.stamp.write_text(f"{INSTALLING}{ended.pid}\n")
    (env.folder / "leftover").write_text("")
    pip.setup(checkout).environment()
    assert "an installation into .venv was interrupted: making it anew" in capsys.readouterr().out
    assert not (env.folder / "leftover").exists()
    env.stamp.write_text(f"{INSTALLING}{os.getpid()}\n")
    with pytest.raises(SetupError, match=f"process {os.getpid()} is installing into .venv: wait for it."):
        pip.setup(checkout).environment()


def test_a_process_that_nobody_reaped_is_not_alive() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert not environments.is_alive(ended.pid)
    ended.wait()


SAID = {
    "nothing-unpacked": ("ERROR: no space left", True),
    "half-unpacked": ("Installing collected packages: torch\nERROR: no space left", False),
}


@pytest.mark.parametrize(("said", "as_before"), SAID.values(), ids=SAID)
def test_an_installation_that_fails_says_what_the_installer_said(
    said: str, as_before: bool, checkout: Path, pip: Pip
) -> None:
    env = pip.setup(checkout).environment()
    before = env.stamp.read_text()
    fails = [sys.executable, "-c", f"import sys; print('Collecting torch'); print({said!r}); sys.exit(1)"]
    with pytest.raises(SetupError, match=r"(?s)my\.txt cannot be installed into \.venv .*\nERROR: no space left$"):
        env.install("my.txt", "other", fails, [])
    assert (env.stamp.read_text() == before) is as_before


def test_a_release_that_does_not_exist_is_named(checkout: Path, pip: Pip) -> None:
    pip.setup(checkout).environment()

    def refuse(environment: Environment, name: str, holds: str, arguments: Sequence[str]) -> None:
        says = "ERROR: No matching distribution found for transformers==9.9 (from versions: 4.0, 5.0)"
        environment.install(name, holds, [sys.executable, "-c", f"import sys; print({says!r}); sys.exit(1)"], [])

    with pytest.raises(SetupError, match=r"^there is no transformers 9\.9\.$"):
        Setup(checkout / "fixtures/baseline.txt", "9.9", checkout, refuse).environment()
    assert not (checkout / ".venv-transformers-9.9").exists()


@pytest.mark.parametrize("configured", [True, False])
def test_uv_is_used_where_it_would_find_the_same_as_pip(
    configured: bool, checkout: Path, pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = pip.setup(checkout).environment()
    monkeypatch.setattr(environments.shutil, "which", lambda name: f"/somewhere/{name}")
    monkeypatch.setattr(environments, "pip_is_configured", lambda python: configured)
    monkeypatch.setattr(Environment, "runs", lambda self, code="": True)
    assert (environments.installer_of(env)[0] == "/somewhere/uv") is not configured


def test_progress_shows_what_takes_long() -> None:
    lines: dict[str, Callable[[str], bool] | str | None] = {
        "  Downloading torch-2.13.0-cp311.whl (200.1 MB)": "torch-2.13.0-cp311.whl (200.1 MB)",
        "  Downloading six-1.17.0-py2.py3-none-any.whl (11 kB)": None,
        "Installing collected packages: six, torch": "unpacking",
        "Requirement already satisfied: six": None,
    }
    assert {line: environments.step_of(line) for line in lines} == lines


@pytest.fixture
def fake(checkout: Path) -> tuple[Make, list[str]]:
    """A call of `make test` whose programs are written down instead of run; those of the list fail."""
    ran: list[str] = []

    class Fake(Make):
        def interpreter(self) -> str:
            return "python"

        def call(self, python: str, *arguments: str) -> int:
            ran.append(" ".join(arguments))
            return int("ruff" in arguments)

    return Fake("test", {"OFFLINE": "1", "JOBS": "3", "ARGS": "-k 'llama and attn'"}, checkout), ran


def test_everything_runs_even_when_something_fails(fake: tuple[Make, list[str]]) -> None:
    make, ran = fake
    assert make.run() == 1
    assert [call.split()[1] for call in ran] == [*(each[1] for each in LINT), "pytest"]
    assert ran[-1] == "-m pytest -n 3 --rows --trained -k llama and attn"


def test_clean_removes_what_was_made_here_and_nothing_else(checkout: Path) -> None:
    kept = [checkout / "reference_impl/attention.py", checkout / ".venv-of-mine/bin/python", checkout / ".git/__pycache__/x"]
    gone = [checkout / "parity-report/report.json", checkout / ".venv/hf-parity.stamp", checkout / "a/b/__pycache__/x.pyc"]
    for path in (*kept, *gone):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    assert Make("clean", {}, checkout).run() == 0
    assert [path for path in (*kept, *gone) if path.exists()] == kept


def test_a_family_is_laid_out_after_another(tmp_path: Path) -> None:
    """And runs as it is, as long as transformers has it: Granite reads Llama's keys, and has four multipliers besides."""
    for place in family.PLACES:
        shutil.copytree(CHECKOUT / place, tmp_path / place, ignore=shutil.ignore_patterns("__pycache__"))
    written = family.lay_out("granite", "llama", tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in written] == [f"{place}/granite.py" for place in family.PLACES]
    assert "granite" in family.existing(tmp_path)
    for path in written:
        text = path.read_text()
        compile(text, str(path), "exec")
        assert not re.search(r"\bllama\b|Llama[A-Z]", text)
    assert "published.variants(" in (tmp_path / "fixtures/granite.py").read_text()
    assert "Granite-3" not in (tmp_path / "fixtures/granite.py").read_text(), "these were published by others"
    record = (tmp_path / "parity_tests/families/granite.py").read_text()
    assert 'hf_class="GraniteForCausalLM"' in record
    assert "from parity_tests.families.units import LLAMA_LAYER" in record, "what families share keeps its name"
    with pytest.raises(SetupError, match=r"models/granite\.py is there already; nothing was written"):
        family.lay_out("granite", "llama", tmp_path)
