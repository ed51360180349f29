"""`make TARGET` as a program: finds or sets up the environment that a job runs in, and runs it there.

    python3 -m parity_tests.jobs.make parity

Variables come from the environment, where make puts those of its command line: see `commands.VARIABLES`. Exit codes are those
of the job; 2 where it could not begin.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from parity_tests.jobs import CHECKOUT
from parity_tests.jobs.commands import COMMANDS, Command, help_lines, with_releases
from parity_tests.jobs.environments import NEW_ENOUGH, Environment, Setup, SetupError, missing, runs
from parity_tests.jobs.family import lay_out

LINT = (("-m", "ruff", "check", "."), ("-m", "pyright", "--pythonpath", "{python}"))
LEFTOVERS = ("parity-report", ".pytest_cache", ".ruff_cache", ".hypothesis", "build")


class Make:
    """A call of make: its target and its variables."""

    def __init__(self, target: str, variables: Mapping[str, str], root: Path = CHECKOUT):
        self.target, self.root = target, root
        self.python, self.transformers = variables.get("PYTHON", ""), variables.get("TRANSFORMERS", "")
        self.baseline = root / variables.get("BASELINE", "fixtures/baseline.txt")
        self.offline = variables.get("OFFLINE", "") not in ("", "0")
        self.jobs = variables.get("JOBS", "")
        self.family = variables.get("NAME", ""), variables.get("LIKE", "llama")
        self.arguments = [*variables.get("N", "").split(), *shlex.split(variables.get("ARGS", ""))]

    @property
    def command(self) -> Command:
        return COMMANDS[self.target]

    def interpreter(self) -> str:
        """The Python that the job runs in. Errors: SetupError."""
        if self.transformers and self.python:
            raise SetupError("TRANSFORMERS sets up an environment of its own, and PYTHON names yours: give one of them.")
        if self.transformers and not self.command.releases:
            raise SetupError(f"TRANSFORMERS is for make {with_releases()}, not for make {self.target}.")
        if self.python or self.command.active:
            return self.examined(self.python or "python")
        return str(Setup(self.baseline, self.transformers, self.root).environment().python)

    def examined(self, python: str) -> str:
        """The user's own, where everything is there, and in which nothing is installed."""
        if not runs(python, NEW_ENOUGH):
            raise SetupError(f"Python 3.11 or later is needed, and PYTHON={python} is not one that runs.")
        with (self.root / "pyproject.toml").open("rb") as file:
            project = tomllib.load(file)["project"]
        optional = project["optional-dependencies"]["dev"]
        needed = [each for each in optional if each.startswith(self.command.needs)] if self.command.needs else []
        if absent := list(missing(python, [*project["dependencies"], *needed])):
            pip = shlex.join([python, "-m", "pip", "install", *absent])
            raise SetupError(f"{python} has no {', '.join(absent)}; to install: {pip}")
        return python

    def report(self) -> list[str]:
        """Where another release leaves its report."""
        takes = self.transformers and self.target in ("parity", "real")
        return ["--report", f"parity-report/transformers-{self.transformers}"] if takes else []

    def run(self) -> int:
        """Do it; the exit code."""
        if self.target == "help":
            print("\n".join(help_lines()))
            return 0
        if self.target == "clean":
            return self.clean()
        if self.target == "family":
            for path in lay_out(*self.family, self.root):
                print(path.relative_to(self.root))
            return 0
        python = self.interpreter()
        if self.target == "environment":
            return 0
        if self.target == "lint":
            return self.lint(python)
        if self.target == "test":
            return self.test(python)
        return self.call(python, "-m", "parity_tests", self.target, *self.report(), *self.arguments)

    def call(self, python: str, *arguments: str) -> int:
        """A program of the environment, from the checkout."""
        variables = {**os.environ, **({"JOBS": self.jobs} if self.jobs else {})}
        return subprocess.run([python, *arguments], cwd=self.root, env=variables).returncode

    def lint(self, python: str) -> int:
        """Both, even when the first fails."""
        ran = [self.call(python, *(part.format(python=shutil.which(python) or python) for part in each)) for each in LINT]
        return int(any(ran))

    def test(self, python: str) -> int:
        """Everything runs even when something fails. pytest comes last: its summary is the closing line."""
        if not self.offline and (code := self.call(python, "-m", "parity_tests", "fetch", "smollm2", "minilm")):
            return code
        linted = self.lint(python)
        jobs = ("-n", self.jobs or "2")
        tested = self.call(python, "-m", "pytest", *jobs, "--rows", "--trained", *self.arguments)
        return tested or linted

    def clean(self) -> int:
        """Remove what was made here, and of the environments those that have our stamp."""
        for name in LEFTOVERS:
            shutil.rmtree(self.root / name, ignore_errors=True)
        for folder in self.root.glob("*.egg-info"):
            shutil.rmtree(folder)
        for folder in self.root.glob(".venv*"):
            if Environment(folder).stamp.is_file():
                shutil.rmtree(folder)
        for top in [folder for folder in self.root.iterdir() if not folder.name.startswith(".")]:
            for folder in [top, *top.rglob("__pycache__")] if top.is_dir() else ():
                if folder.name == "__pycache__":
                    shutil.rmtree(folder)
        return 0


def main(arguments: Sequence[str]) -> int:
    """The target of a call of make."""
    if len(arguments) != 1 or arguments[0] not in COMMANDS:
        print("hf-parity: name one of " + ", ".join(COMMANDS), file=sys.stderr)
        return 2
    try:
        return Make(arguments[0], os.environ).run()
    except SetupError as error:
        print(f"hf-parity: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
