"""`python -m parity_tests COMMAND`: the jobs that the Makefile names. What follows a command goes to pytest."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fixtures import real

HERE = Path(__file__).parent
COMPARISONS = [str(HERE / f"test_{name}.py") for name in ("blocks", "layers", "models", "cache", "generation")]
BESIDE = [
    *(str(HERE / f"test_{name}.py") for name in ("configs", "training", "losses", "ways_in")),
    f"{HERE / 'test_invariants.py'}::test_saved_and_loaded",
]
"""What moves between releases as well, and is compared on tiny models alone."""
REPORT = ["--report", "parity-report"]


def _jobs() -> list[str]:
    """As many workers as there are cores, up to four; more cost more in start-up than they save."""
    return ["-n", os.environ.get("JOBS", str(min(4, os.cpu_count() or 1)))]


def parity(arguments: Sequence[str]) -> int:
    """The main job: every family against the installed transformers."""
    return pytest.main(["-q", "--no-header", "--no-shapes", *_jobs(), *REPORT, *COMPARISONS, *BESIDE, *arguments])


def gpu(arguments: Sequence[str]) -> int:
    """The same on CUDA, in one process: two would share the device."""
    return pytest.main(["-q", "--device", "cuda", *REPORT, *COMPARISONS, *arguments])


def trained(arguments: Sequence[str]) -> int:
    """Fetch and verify trained checkpoints: those named, or all whose licence is a free one."""
    named = [argument for argument in arguments if argument in real.CHECKPOINTS]
    names = named or [name for name, checkpoint in real.CHECKPOINTS.items() if not checkpoint.opt_in]
    chosen = [f"--checkpoint={real.fetch(name)}" for name in names]
    others = [argument for argument in arguments if argument not in named]
    return pytest.main(["-q", *chosen, *REPORT, *COMPARISONS, str(HERE / "test_trained.py"), *others])


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
    """List the differences that are upstream's own: what, in which releases, and where to read of it."""
    from parity_tests.harness import differences

    differences.show()
    return 0


def fuzz(arguments: Sequence[str]) -> int:
    """Load damaged checkpoints, 2,000 or as many as are asked for: each ends as a model or as one sentence."""
    from parity_tests import fuzzing

    parser = argparse.ArgumentParser(prog="python -m parity_tests fuzz", description=fuzz.__doc__)
    parser.add_argument("n", type=int, nargs="?", default=2000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the number of the first, to try one again")
    parser.add_argument("--keep", type=Path, default=Path("parity-report/fuzz"), help="where those go that end otherwise")
    chosen = parser.parse_args(arguments)
    return min(fuzzing.run(chosen.n, chosen.keep, chosen.first), 1)


def doctor(arguments: Sequence[str]) -> int:
    """Is a trained checkpoint damaged in a way that parity cannot see? Names the mistake, and undoes it."""
    from parity_tests.doctor import command

    return command.main(arguments)


def rows(arguments: Sequence[str]) -> int:
    """Run every test, and print which of them show which row of the seeds."""
    return pytest.main(["-q", "--no-header", *_jobs(), "--rows", *arguments])


COMMANDS = {
    "parity": parity,
    "gpu": gpu,
    "real": trained,
    "fetch": fetch,
    "facts": facts,
    "flags": flags,
    "known": known,
    "fuzz": fuzz,
    "doctor": doctor,
    "rows": rows,
}


def main() -> int:
    """Run a command; its exit code is non-zero when anything differs that is not a listed known difference."""
    parser = argparse.ArgumentParser(prog="python -m parity_tests", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, function in COMMANDS.items():
        commands.add_parser(name, help=function.__doc__, add_help=False)
    chosen, rest = parser.parse_known_args()
    try:
        return int(COMMANDS[chosen.command](rest))
    except real.FetchError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
