"""Every job by its name, once: `make help`, `hf-parity --help` and the README say what stands here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A job. example: how it is best shown, with its arguments. releases: whether it can run against another release, in an
    environment of its own; checkout: whether it works on the checkout, so that an installation does not have it; active: runs
    in the active environment unless told otherwise; needs: packages that it takes besides those of the project.
    """

    what: str
    example: str = ""
    releases: bool = False
    checkout: bool = False
    active: bool = False
    needs: tuple[str, ...] = ()


DEV = ("pytest-xdist", "ruff", "pyright")

COMMANDS: Mapping[str, Command] = {
    "parity": Command("verify the installed transformers, print the verdict, write parity-report/report.json", releases=True),
    "test": Command(
        "everything: parity, trained checkpoints, mapping, tests of the tests, lint, types", checkout=True, needs=DEV
    ),
    "real": Command("verify trained checkpoints, fetched when they are not here, or one by name", "ARGS=iglm", releases=True),
    "fetch": Command("fetch trained checkpoints by name, and print where they are", "ARGS=smollm2"),
    "gpu": Command("as parity, on CUDA, in the active environment", active=True),
    "facts": Command("what the seed documents state about torch and transformers, and whether it is so", releases=True),
    "rows": Command("item by item what the seed documents describe, where it is, and whether every test of it passes"),
    "known": Command("what transformers is known to compute otherwise, and in which releases", releases=True),
    "flags": Command("which fields of transformers' configs the fixtures vary, and which need not be", releases=True),
    "fuzz": Command("damaged checkpoints, each of which must load or be refused in one sentence", "N=50000"),
    "doctor": Command("is a trained checkpoint damaged in a way that parity cannot see?", "ARGS=path/to/model"),
    "family": Command(
        "lay out the four files of a new family after those of another", "NAME=granite LIKE=llama", checkout=True
    ),
    "lint": Command("ruff and pyright", checkout=True, needs=DEV),
    "environment": Command("set up .venv and nothing else", checkout=True, releases=True),
    "clean": Command("remove reports, caches and the environments made here", checkout=True),
    "help": Command("print this", checkout=True),
}

VARIABLES: Mapping[str, str] = {
    "PYTHON=python": "use the active environment and install nothing (otherwise .venv, made when there is none)",
    "TRANSFORMERS=4.57.6": "that release, in an environment of its own beside .venv: {releases}",
    "BASELINE=my.txt": "other versions in .venv than those of fixtures/baseline.txt",
    "OFFLINE=1": "test without fetching trained checkpoints",
    "JOBS=2": "how many processes are used",
    'ARGS="..."': "further arguments for the job, or for pytest",
}


def listed(names: list[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def with_releases() -> str:
    """The jobs that take TRANSFORMERS, in words."""
    return listed([name for name, command in COMMANDS.items() if command.releases])


def help_lines() -> list[str]:
    """What `make help` prints: the jobs, which the README has too, and the variables."""
    shown = {f"make {name} {command.example}".strip(): command.what for name, command in COMMANDS.items()}
    variables = {name: what.format(releases=with_releases()) for name, what in VARIABLES.items()}
    width = max(map(len, shown)) + 2
    return [
        *(f"{name:{width}}{what}" for name, what in shown.items()),
        "",
        *(f"{name:{width}}{what}" for name, what in variables.items()),
    ]
