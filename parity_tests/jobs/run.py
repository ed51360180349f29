"""The jobs that run in an environment: `hf-parity JOB`, `python -m parity_tests JOB`, `make JOB`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from parity_tests.fixtures import real
from parity_tests.jobs.commands import COMMANDS

HERE = Path(__file__).parents[1]
COMPARISONS = [str(HERE / f"test_{name}.py") for name in ("blocks", "layers", "models", "cache", "generation")]
BESIDE = [
    *(str(HERE / f"test_{name}.py") for name in ("configs", "training", "losses", "ways_in")),
    f"{HERE / 'test_invariants.py'}::test_saved_and_loaded",
]
"""What moves between releases as well, and is compared on tiny models alone."""
REPORT = ["--report", "parity-report"]


def _pytest(*arguments: str) -> int:
    """From any folder, with the suite switched on."""
    return pytest.main(["-p", "no:logging", "-p", "parity_tests.suite", *arguments])


def _jobs() -> list[str]:
    """As many workers as there are cores, up to four; more cost more in start-up than they save."""
    return ["-n", os.environ.get("JOBS") or str(min(4, os.cpu_count() or 1))]


def parity(arguments: Sequence[str]) -> int:
    """The main job: every family against the installed transformers."""
    return _pytest("-q", "--no-header", "--no-shapes", *_jobs(), *REPORT, *COMPARISONS, *BESIDE, *arguments)


def gpu(arguments: Sequence[str]) -> int:
    """The same on CUDA, in one process: two would share the device."""
    return _pytest("-q", "--device", "cuda", *REPORT, *COMPARISONS, *arguments)


def trained(arguments: Sequence[str]) -> int:
    """Fetch and verify trained checkpoints: those named, or all whose licence is a free one."""
    named = [argument for argument in arguments if argument in real.CHECKPOINTS]
    names = named or [name for name, checkpoint in real.CHECKPOINTS.items() if not checkpoint.opt_in]
    chosen = [f"--checkpoint={real.fetch(name)}" for name in names]
    others = [argument for argument in arguments if argument not in named]
    return _pytest("-q", *chosen, *REPORT, *COMPARISONS, str(HERE / "test_trained.py"), *others)


def fetch(names: Sequence[str]) -> int:
    """Fetch trained checkpoints by name."""
    for name in names:
        path = real.fetch(name)
        print(f"{name}, licence: {real.CHECKPOINTS[name].licence}", file=sys.stderr)
        print(path)
    return 0


def facts(arguments: Sequence[str]) -> int:
    """Put what the seeds state about torch and transformers to the installed versions."""
    from parity_tests.facts import table  # builds on transformers, which the other commands leave to pytest

    return table.main()


def flags(arguments: Sequence[str]) -> int:
    """Which fields of transformers' configs the fixtures vary, family by family, and which need not be."""
    from parity_tests.harness import flags

    return min(flags.show(), 1)


def known(arguments: Sequence[str]) -> int:
    """List the differences that are upstream's own, or write them, with all that was found, as a page."""
    parser = argparse.ArgumentParser(prog="hf-parity known", description=COMMANDS["known"].what)
    parser.add_argument("--page", action="store_true", help="write parity_tests/FINDINGS.md instead")
    if parser.parse_args(arguments).page:
        from parity_tests import findings

        findings.PAGE.write_text(findings.page())
        print(findings.PAGE)
        return 0
    from parity_tests.harness import differences

    differences.show()
    return 0


def fuzz(arguments: Sequence[str]) -> int:
    """Load damaged checkpoints, 2,000 or as many as are asked for: each ends as a model or as one sentence."""
    from parity_tests import fuzzing

    parser = argparse.ArgumentParser(prog="hf-parity fuzz", description=fuzz.__doc__)
    parser.add_argument("n", type=int, nargs="?", default=2000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the number of the first, to try one again")
    parser.add_argument("--keep", type=Path, default=Path("parity-report/fuzz"), help="where those go that end otherwise")
    chosen = parser.parse_args(arguments)
    return min(fuzzing.run(chosen.n, chosen.keep, chosen.first), 1)


def doctor(arguments: Sequence[str]) -> int:
    """Examine a trained checkpoint: name what was done to it, and undo it."""
    from parity_tests.doctor import command

    return command.main(arguments)


def rows(arguments: Sequence[str]) -> int:
    """Run every test, and print item by item what of the seeds is shown; or list anew which tests do."""
    parser = argparse.ArgumentParser(prog="hf-parity rows", description=COMMANDS["rows"].what)
    parser.add_argument("--freeze", action="store_true", help="list anew which kinds of tests show what, and write SEEDS.md")
    chosen, others = parser.parse_known_args(arguments)
    if not chosen.freeze:
        return _pytest("-q", "--no-header", *_jobs(), "--rows-each", str(HERE), *others)
    _pytest("-q", "--no-header", "--rows-freeze", str(HERE), *others)
    from parity_tests.seeds import page

    page.PAGE.write_text(page.page())
    print(page.PAGE)
    return 0


JOBS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "parity": parity,
    "real": trained,
    "fetch": fetch,
    "gpu": gpu,
    "facts": facts,
    "rows": rows,
    "known": known,
    "flags": flags,
    "fuzz": fuzz,
    "doctor": doctor,
}


def main() -> int:
    """Run a command; its exit code is non-zero when anything differs that is not a listed known difference."""
    parser = argparse.ArgumentParser(prog="hf-parity", description="Does transformers compute what the reference says?")
    commands = parser.add_subparsers(dest="command", required=True, metavar="JOB", title="jobs")
    for name in JOBS:
        commands.add_parser(name, help=COMMANDS[name].what, add_help=False)
    chosen, rest = parser.parse_known_args()
    try:
        return int(JOBS[chosen.command](rest))
    except real.FetchError as error:
        print(error, file=sys.stderr)
        return 2
