"""pytest's side of the suite: the header, cases generated from the family records, the report.

Shape checking of the reference is switched on here. What takes long to import is imported where it is used, since xdist's
controller uses none of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from parity_tests import plugin
from parity_tests.harness import report
from parity_tests.harness.report import Result
from parity_tests.seeds import verdict

if TYPE_CHECKING:
    from parity_tests.harness.recorder import Recorder

def pytest_addoption(parser: pytest.Parser) -> None:
    plugin.add_options(parser)


def is_controller(config: pytest.Config) -> bool:
    """Whether this process only hands tests to xdist's workers. It imports neither torch nor transformers."""
    return bool(getattr(config.option, "numprocesses", None)) and not hasattr(config, "workerinput")


def examine_checkpoints(config: pytest.Config) -> None:
    """What cannot be verified is refused once, here and not in xdist's workers, and the others are compared, wherever in the
    checkout pytest was called. Where nothing is left, nothing else is imported.
    """
    from parity_tests.fixtures.real import FetchError
    from parity_tests.harness.checkpoints import REFUSED, asked_for, refusals

    if config.option.checkpoint and config.args_source is pytest.Config.ArgsSource.INVOCATION_DIR:
        config.args = [str(plugin.CHECKOUT / path) for path in config.getini("testpaths")]
    if (given := getattr(config, "workerinput", None)) is not None:
        config.stash[REFUSED] = {Path(path): why for path, why in given["refused"].items()}
        return
    try:
        paths = asked_for(config.option.checkpoint, config.option.trained)
    except FetchError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[REFUSED] = refused = refusals(paths)
    if config.option.checkpoint and len(refused) == len(paths):
        raise pytest.UsageError(*refused.values())


def refused_in(config: pytest.Config) -> dict[Path, str]:
    """The checkpoints of this call that cannot be verified, and why."""
    if not (config.option.checkpoint or config.option.trained):
        return {}  # without importing torch
    from parity_tests.harness.checkpoints import REFUSED

    return config.stash[REFUSED]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist is about to start a worker."""
    node.workerinput["refused"] = {str(path): why for path, why in refused_in(node.config).items()}


def pytest_configure(config: pytest.Config) -> None:
    if not is_controller(config):
        if not config.option.no_shapes:
            from jaxtyping import install_import_hook

            install_import_hook("reference_impl", "beartype.beartype")  # before anything imports it

        from parity_tests.harness import numerics

        numerics.pin(config.option.device)
    if config.option.checkpoint or config.option.trained:
        examine_checkpoints(config)
    config.addinivalue_line("markers", "level(name): the level of the sites that a test compares")
    config.addinivalue_line("markers", "precisions(name, ...): the precisions that a test runs in")
    config.addinivalue_line("markers", "one_backend: with one backend a precision, as every call of it is compared elsewhere")
    config.addinivalue_line("markers", "rounding_once: below float64 only in variants that show what rounding does")
    config.addinivalue_line("markers", "causal: only where the model reads token by token")
    config.addinivalue_line("markers", "has(field): only where the reference's config has this field")
    config.addinivalue_line("markers", "shallow: not for variants of very many layers, which show their order elsewhere")
    config.addinivalue_line("markers", "broad: not for variants that are there for one thing, and compared at its sites alone")
    config.addinivalue_line("markers", "first: of a family's variants that a test takes part in the first that reads no memory")
    config.addinivalue_line("markers", "checkout: only in a checkout, of which an installation is a part")
    config.addinivalue_line("markers", "tiny: not for checkpoints that somebody trained")
    config.addinivalue_line("markers", "trained: only for checkpoints that somebody trained")
    config.pluginmanager.register(Verdict(config), "parity-verdict")


def pytest_report_header(config: pytest.Config) -> list[str]:
    return report.header(config.option.device, config.option.checkpoint or ())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    from parity_tests.harness.collection import parametrize

    parametrize(metafunc)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Trained models last and case by case, so that only one of them is in memory; with --checkpoint nothing else."""
    from parity_tests.harness.collection import trained_case

    if config.option.checkpoint:
        config.hook.pytest_deselected(items=[item for item in items if not trained_case(item)])
        items[:] = filter(trained_case, items)
    items.sort(key=trained_case)
    if not plugin.IS_CHECKOUT:
        for item in filter(lambda item: item.get_closest_marker("checkout"), items):
            item.add_marker(pytest.mark.skip("this is about a checkout, and this is an installation"))
    if config.option.rows_freeze:
        from parity_tests.seeds import carried

        config.get_terminal_writer().line(f"{carried.freeze(items)} items in {carried.FROZEN}")
        items.clear()


def pytest_runtest_setup(item: pytest.Item) -> None:
    from parity_tests.harness import numerics
    from parity_tests.harness.collection import trained_case

    if plugin.wants_items(item.config):
        from parity_tests.seeds.carried import kind_of_test

        item.user_properties.append(("kind", kind_of_test(item)))
    numerics.share(numerics.CORES if trained_case(item) else 1)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Out of memory, or a device that failed, says nothing of transformers: the whole run ends, with one sentence."""
    try:
        return (yield)
    except Exception as error:
        from parity_tests.harness.blame import machine

        if (says := machine(error)) is None:
            raise
        pyfuncitem.session.shouldstop = f"{pyfuncitem.name}: {says}"
        pytest.skip(f"the run ends here: {says}")


@pytest.fixture
def recorder(request: pytest.FixtureRequest) -> Recorder:
    """Puts outcomes on record, and fails with a message that a person can act on."""
    from parity_tests.harness.recorder import Recorder

    verdict: Any = request.config.pluginmanager.get_plugin("parity-verdict")
    return Recorder(request, verdict.results)


class Verdict:
    """Collects what the tests recorded and tells it at the end. xdist's workers hand theirs over when they are done."""

    def __init__(self, config: pytest.Config):
        self.config = config
        self.results: list[Result] = []
        self.ran: list[Any] = []  # how a test ended, and its kind

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        for why in refused_in(self.config).values() if not hasattr(self.config, "workerinput") else ():
            self.config.get_terminal_writer().line(f"ERROR: {why}", red=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not is_controller(self.config) and (report.when == "call" or report.outcome != "passed"):
            self.ran += [(str(report.outcome), value) for name, value in report.user_properties if name == "kind"]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker is done; one that crashed has nothing to hand over, and fails its tests."""
        given = getattr(node, "workeroutput", {})
        self.results += [Result(*values) for values in given.get("results", ())]
        self.ran += given.get("ran", ())

    def damaged(self) -> Iterator[str]:
        """Of the checkpoints that were named and agree: those that the doctor finds odd, as both sides read the same file."""
        if not self.config.option.checkpoint or not self.results or any(r.verdict == "differs" for r in self.results):
            return
        from parity_tests.doctor.glance import glance
        from parity_tests.harness.checkpoints import asked_for

        for path in asked_for(self.config.option.checkpoint, trained=False):
            if path not in refused_in(self.config) and (says := glance(path)) is not None:
                yield f"both sides agree on {path}, and it is odd: {says}; see hf-parity doctor {path}"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        device, folder = self.config.option.device, self.config.option.report
        if folder is not None:
            path = report.write(self.results, folder, device)
            terminalreporter.write_line(f"{len(self.results)} results in {path}")
        if self.results:
            report.show(self.results, device)
        for line in self.damaged():
            terminalreporter.write_line(line, yellow=True)
        for path in refused_in(self.config):
            terminalreporter.write_line(f"not verified, see the ERROR above: {path}", red=True)
        if plugin.wants_items(self.config):
            verdict.show(self.items(), each=self.config.option.rows_each)

    def items(self) -> list[verdict.Shown]:
        """What this run says of the items of the seeds."""
        return verdict.judge(self.ran, plugin.is_of_everything(self.config))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """An item that no test shows fails the suite. A checkpoint that was refused: an error of usage."""
        handed_over: dict[str, Any] | None = getattr(self.config, "workeroutput", None)
        if handed_over is not None:
            handed_over |= {"results": [astuple(result) for result in self.results], "ran": self.ran}
        elif plugin.wants_items(self.config) and not all(shown.right for shown in self.items()):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        elif refused_in(self.config) and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.USAGE_ERROR


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Everything about one variant goes to one worker, where its models are built once."""
    from xdist.scheduler import LoadScopeScheduling

    class ByVariant(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            found = re.search(r"\[(.+?)-(?:f64|f32|bf16|f16)-", nodeid)
            return found.group(1) if found else nodeid.split("::")[0]

    return ByVariant(config, log)
