"""What pytest loads wherever this project is installed, for every project that is tested there: it looks whether the call is
about these tests, and only then switches on `suite`.

In a checkout it gives the options at once, as pytest takes what follows an option that it does not know for a place of tests,
and what lies there says what its root is, and so which conftest.py is read. In a checkout that is not installed they come from
conftest.py, and then `--checkpoint=PATH` has to be written with its sign.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest

from parity_tests.harness.names import PRECISIONS

PACKAGE = Path(__file__).parent
CHECKOUT = PACKAGE.parent
"""Where the packages lie: a checkout, or where an installation has put them."""
IS_CHECKOUT = (CHECKOUT / "pyproject.toml").is_file() and (CHECKOUT / "conftest.py").is_file()
RECORDS = PACKAGE / "families"

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "--family": {
        "action": "append",
        "choices": sorted(path.stem for path in RECORDS.glob("*.py") if "\nFAMILY = " in path.read_text()),
        "help": "only this family (repeatable)",
    },
    "--precision": {"action": "append", "choices": PRECISIONS, "help": "only this precision (repeatable)"},
    "--attention": {"action": "append", "choices": ("eager", "sdpa"), "help": "only this attention (repeatable)"},
    "--experts": {"action": "append", "help": "only this way to run experts: eager, batched_mm, grouped_mm"},
    "--device": {"default": "cpu", "help": "where both sides run: cpu (default), cuda, cuda:1 …"},
    "--checkpoint": {
        "action": "append",
        "type": Path,
        "metavar": "PATH",
        "help": "only this checkpoint: an HF folder or a GGUF file (repeatable)",
    },
    "--trained": {"action": "store_true", "help": "verify the trained checkpoints that were fetched, too"},
    "--no-shapes": {"action": "store_true", "help": "do not check the shapes inside the reference (faster)"},
    "--rows": {"action": "store_true", "help": "print, by section of the seeds, whether all that they describe is shown"},
    "--rows-each": {"action": "store_true", "help": "the same item by item, with its place, and a test to run"},
    "--rows-freeze": {"action": "store_true", "help": "list anew which kinds of tests show what; run no test"},
    "--report": {"type": Path, "metavar": "DIR", "help": "write DIR/report.json"},
}

_told: WeakSet[pytest.Parser] = WeakSet()


def add_options(parser: pytest.Parser) -> None:
    """Once, whoever comes first."""
    if parser in _told:
        return
    _told.add(parser)
    group = parser.getgroup("parity", "hf-parity: what to compare")
    for name, how in OPTIONS.items():
        group.addoption(name, **how)


def is_called_here() -> bool:
    """Whether pytest was called in this checkout. Elsewhere other projects have options of these names."""
    return IS_CHECKOUT and Path.cwd().is_relative_to(CHECKOUT)


def is_ours(argument: str) -> bool:
    """Whether an argument names these tests: by their package, for --pyargs, or by where they lie."""
    place = argument.split("::")[0]
    return place.split(".")[0] == PACKAGE.name or Path(place).absolute().is_relative_to(PACKAGE)


SELECTIONS = ("family", "precision", "attention", "experts", "checkpoint", "keyword", "markexpr", "deselect", "lf", "maxfail")


def is_of_everything(config: pytest.Config) -> bool:
    """Whether a run was asked for all tests, so that one that is not there is missing."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS and config.args != [str(PACKAGE)]
    return not named and not any(getattr(config.option, name, None) for name in SELECTIONS)


def wants_items(config: pytest.Config) -> bool:
    """Whether the verdict on the items of the seeds is asked for."""
    return bool(config.option.rows or config.option.rows_each)


def pytest_addoption(parser: pytest.Parser) -> None:
    if is_called_here():
        add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """pytest has settled on its root, and not yet on its options."""
    if not is_called_here() and any(map(is_ours, args)):
        early_config.pluginmanager.import_plugin("parity_tests.suite")


def joined(arguments: Sequence[str]) -> list[str]:
    """`--checkpoint PATH` as `--checkpoint=PATH`, and so with each of these options that has a value."""
    out: list[str] = []
    for argument in arguments:
        follows = bool(out) and OPTIONS.get(out[-1], {}).get("action") != "store_true" and out[-1] in OPTIONS
        out[-1:] = [f"{out[-1]}={argument}"] if follows else [*out[-1:], argument]
    return out


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | pytest.ExitCode | None:
    """pytest has settled on its root before it asked anybody for options. Where a value led it away from this checkout, it
    begins anew with what it cannot mistake.
    """
    given = [str(argument) for argument in config.invocation_params.args]
    unmistakable = joined(given)
    if not is_called_here() or config.rootpath == CHECKOUT or unmistakable == given:
        return None
    return pytest.main(unmistakable, config.invocation_params.plugins)
