"""The project's own environments: `.venv`, and beside it one for each further release of transformers.

A stamp in an environment says what it holds, by its content, or which process has begun to install into it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from parity_tests.jobs import CHECKOUT

INSTALLING = "installing in process "


class SetupError(Exception):
    """What keeps an environment from being set up, in one sentence."""


def is_alive(process: int) -> bool:
    """Whether it runs: one that ended and that nobody has reaped, as in containers, does not."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True).stdout
    except FileNotFoundError:
        return True
    return not state.startswith("Z")


@dataclass
class Environment:
    """A folder with a Python of its own, and the stamp that says what is in it."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin/python"

    @property
    def stamp(self) -> Path:
        return self.folder / "hf-parity.stamp"

    @property
    def log(self) -> Path:
        return self.folder / "hf-parity.log"

    @property
    def packages(self) -> Path:
        """Its site-packages. Errors: SetupError when it has none."""
        found = sorted(self.folder.glob("lib/python*/site-packages"))
        if not found:
            raise SetupError(f"{self.folder} has no site-packages: remove it and call again.")
        return found[-1]

    @property
    def holds(self) -> str:
        """What its stamp says; nothing where an installation was interrupted, which is removed. Errors: SetupError while
        another process installs.
        """
        said = self.stamp.read_text().strip() if self.stamp.is_file() else ""
        if not said.startswith(INSTALLING):
            return said
        process = int(said.removeprefix(INSTALLING))
        if is_alive(process):
            raise SetupError(f"process {process} is installing into {self.folder.name}: wait for it.")
        print(f"an installation into {self.folder.name} was interrupted: making it anew", flush=True)
        shutil.rmtree(self.folder)
        return ""

    def runs(self, code: str = "") -> bool:
        """Whether its Python runs this."""
        return runs(str(self.python), code)

    def create(self, python: str, *options: str) -> None:
        """An empty one, in place of what lies there."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.stamp.write_text(f"{INSTALLING}{os.getpid()}\n")
        if subprocess.run([python, "-m", "venv", *options, str(self.folder)]).returncode:
            raise SetupError(f"{self.folder.name} cannot be made.")

    def install(self, name: str, holds: str, installer: Sequence[str], arguments: Sequence[str]) -> None:
        """Have an installer install. Errors: SetupError, and what the installer said of it. What was there stays on record
        when nothing was unpacked yet.
        """
        before = self.stamp.read_text() if self.stamp.is_file() else ""
        print(f"installing {name} into {self.folder.name}", flush=True)
        self.stamp.write_text(f"{INSTALLING}{os.getpid()}\n")
        begun = False
        with self.log.open("w") as log:
            command = [*installer, *arguments]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
                for line in running.stdout or ():
                    log.write(line)
                    if step := step_of(line):
                        print(f"  {step}", flush=True)
                        begun = begun or step == UNPACKING
        if running.returncode:
            if not begun and before and not before.startswith(INSTALLING):
                self.stamp.write_text(before)
            raise SetupError(
                f"{name} cannot be installed into {self.folder.name} (all that was said: {self.log}).\n{complaint(self.log)}"
            )
        self.stamp.write_text(f"{holds}\n")


UNPACKING = "unpacking"


def step_of(line: str) -> str | None:
    """What of pip's or uv's lines somebody who waits wants to see: a large download, and that it unpacks."""
    if found := re.search(r"Downloading (.* \(?\d[\d.]* ?(?:MB|GB|MiB|GiB)\)?)", line):
        return found.group(1)
    return UNPACKING if line.startswith(("Installing collected packages", "Prepared ")) else None


def complaint(log: Path) -> str:
    """From the first line on that says ERROR."""
    lines = log.read_text().splitlines()
    first = next((i for i, line in enumerate(lines) if line.lstrip().lower().startswith("error")), max(len(lines) - 5, 0))
    return "\n".join(lines[first:])


def runs(python: str, code: str = "") -> bool:
    """Whether there is such a Python, and it runs this."""
    try:
        return subprocess.run([python, "-c", code], capture_output=True).returncode == 0
    except OSError:
        return False


NEW_ENOUGH = "import sys; sys.exit(sys.version_info < (3, 11))"


def pip_is_configured(python: str) -> bool:
    """Whether pip has settings of its own: an index, folders of wheels, constraints. uv does not read them."""
    said = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    return any(name in said for name in ("index", "find-links", "constraint"))


def installer_of(environment: Environment) -> list[str]:
    """uv where there is one that would find the same as pip, and pip otherwise."""
    python, uv = str(environment.python), shutil.which("uv")
    if not environment.runs("import pip") and subprocess.run([python, "-m", "ensurepip"], capture_output=True).returncode:
        raise SetupError(f"{environment.folder.name} has no pip.")
    if uv and not pip_is_configured(python):
        return [uv, "pip", "install", "--python", python]
    return [python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]


def fill(environment: Environment, name: str, holds: str, arguments: Sequence[str]) -> None:
    """Install, by the installer that suits."""
    environment.install(name, holds, installer_of(environment), arguments)


def digest(*texts: str) -> str:
    """Of these together, short."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


@dataclass
class Setup:
    """What is wanted, and how to come by it. install: puts packages into an environment; tests have one of their own."""

    baseline: Path
    transformers: str = ""
    root: Path = CHECKOUT
    install: Callable[[Environment, str, str, Sequence[str]], None] = fill

    def environment(self) -> Environment:
        """The one that the job runs in, made or brought up to date. Errors: SetupError."""
        version = self.transformers
        if version and not re.fullmatch(r"\d[\da-z.]*", version):
            raise SetupError(f"TRANSFORMERS={version} is no version number such as 4.57.6.")
        if not self.baseline.is_file():
            raise SetupError(f"there is no file {self.baseline} to take the versions from.")
        common = self._common()
        return self._release(common) if version else common

    def _common(self) -> Environment:
        env = Environment(self.root / ".venv")
        wanted = digest(self.baseline.read_text(), (self.root / "pyproject.toml").read_text())
        holds = env.holds
        if not env.runs():
            if not runs(sys.executable, "import ensurepip, venv"):
                package = "install them (on Debian the package python3-venv)."
                raise SetupError(f"{sys.executable} lacks venv or ensurepip: {package}")
            env.create(sys.executable)
            holds = ""
        if holds != wanted:
            if not env.runs(NEW_ENOUGH):
                raise SetupError("the Python in .venv is older than 3.11: remove .venv and call again.")
            what = ["-r", str(self.baseline), "-e", str(self.root)]  # with the options that pytest has to know early
            self.install(env, os.path.relpath(self.baseline, self.root), wanted, what)
        return env

    def _release(self, common: Environment) -> Environment:
        """Its path goes on in .venv's packages, and in the checkout, as theirs does: what suits it there is used there, pip
        included, and pip installs what does not in front of them. It changes nothing outside of its own folder. Sound as long
        as .venv holds the same.
        """
        env = Environment(self.root / f".venv-transformers-{self.transformers}")
        there = sorted(path.name for path in common.packages.glob("*.dist-info"))
        wanted = f"on {digest(*there)}"
        if env.holds == wanted and env.runs():
            return env
        env.create(str(common.python), "--without-pip")
        up = os.path.relpath(self.root, env.packages)
        shared = Path(up) / common.packages.relative_to(self.root)
        (env.packages / "hf-parity.pth").write_text(f"{shared}\n{up}\n")
        name = f"transformers {self.transformers}"
        try:
            self.install(env, name, wanted, [f"transformers=={self.transformers}"])
        except SetupError:
            said = env.log.read_text() if env.log.is_file() else ""
            if "No matching distribution found for transformers==" in said and "(from versions: none)" not in said:
                shutil.rmtree(env.folder)
                raise SetupError(f"there is no {name}.") from None
            raise
        return env


def missing(python: str, wanted: Sequence[str]) -> Iterator[str]:
    """Of these requirements those that a Python has no distribution of, whatever its version."""
    code = "from importlib.metadata import distributions\nfor each in distributions():\n    print(each.name)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    here = {re.sub(r"[-_.]+", "-", name).lower() for name in done.stdout.split()}
    for requirement in wanted:
        name = re.split(r"[<>=\[]", requirement)[0]
        if name not in here:
            yield requirement
