"""A statement that the seeds make about torch or transformers, and whether the installed versions bear it out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import transformers
from packaging.version import Version

from parity_tests.harness.hf import Absent

Check = Callable[[], bool]
"""True when the statement holds. False, or an AssertionError that says what is so instead, when it does not. Errors:
Absent when the installed versions lack what the statement is about.
"""


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A statement that fails, from `since` to before `until`. Without either it never held.

    now: what is so instead. check: asserts that, so that a record which describes the failure wrongly is found.
    """

    now: str
    check: Check
    since: str = "0"
    until: str | None = None
    package: str = "transformers"

    def concerns(self) -> bool:
        """Whether the statement is to fail in the installed version. Errors: Absent when there is none."""
        try:
            version = Version(metadata.version(self.package))
        except metadata.PackageNotFoundError as error:
            raise Absent(f"{self.package} is not installed") from error
        return Version(self.since) <= version and (self.until is None or version < Version(self.until))

    @property
    def word(self) -> str:
        """The verdict: never held, not yet, or changed."""
        if self.since == "0":
            return "never held" if self.until is None else "not yet"
        return "changed"

    @property
    def when(self) -> str:
        """In which releases it fails, in words."""
        if self.since == "0":
            return "never held" if self.until is None else f"holds from {self.package} {self.until} on"
        return f"changed in {self.package} {self.since}" + ("" if self.until is None else f", until {self.until}")


@dataclass(frozen=True, kw_only=True)
class Fact:
    """place: seed and section, "R1, MHA". quote: the seed's own words, short. says: the statement in English."""

    id: str
    place: str
    quote: str
    says: str
    check: Check
    changed: Changed | None = None


@dataclass(frozen=True)
class Verdict:
    """word: holds; changed, never held or not yet, as recorded; not here; contradicted, which nobody recorded; holds again.
    note: why, in words.
    """

    fact: Fact
    word: str
    note: str = ""

    @property
    def wrong(self) -> bool:
        """Whether the installed versions and the record disagree."""
        return self.word in ("contradicted", "holds again")


def _outcome(check: Check) -> tuple[bool, str]:
    try:
        return bool(check()), ""
    except AssertionError as error:
        return False, (str(error).splitlines() or [""])[0]


def judge(fact: Fact) -> Verdict:
    """Put a statement to the installed versions."""
    try:
        held, why = _outcome(fact.check)
        if fact.changed is None or not fact.changed.concerns():
            return Verdict(fact, "holds") if held else Verdict(fact, "contradicted", why)
        if held:
            return Verdict(fact, "holds again", f"recorded as failing: {fact.changed.when}")
        as_recorded, other = _outcome(fact.changed.check)
        if not as_recorded:
            return Verdict(fact, "contradicted", f"and not as recorded ({fact.changed.now}): {other or why}")
        return Verdict(fact, fact.changed.word, f"{fact.changed.when}: {fact.changed.now}")
    except Absent as absent:
        return Verdict(fact, "not here", str(absent))
    except Exception as error:  # a check that breaks says that something moved; which fact, and where, must be told
        return Verdict(fact, "contradicted", f"the check raises {type(error).__name__}: {error}")


# --- checks that need no function of their own ---


def gives(wanted: Any, of: Callable[[], Any]) -> Check:
    """That `of()` is `wanted`."""

    def check() -> bool:
        found = of()
        assert found == wanted, f"it is {found!r}"
        return True

    return check


def raises(error: type[Exception] | tuple[type[Exception], ...], of: Callable[[], Any]) -> bool:
    """Whether `of()` raises an error of this kind."""
    try:
        of()
    except error:
        return True
    return False


def released(name: str) -> Any:
    """A public class of transformers. Errors: Absent."""
    if not hasattr(transformers, name):
        raise Absent(f"transformers {transformers.__version__} has no {name}")
    return getattr(transformers, name)


def theta(config: Any) -> float:
    """`rope_theta`, which 5.0 moved into `rope_parameters`."""
    return config.rope_theta if hasattr(config, "rope_theta") else config.rope_parameters["rope_theta"]


def default(family: str, name: str) -> Any:
    """What a family's configuration is when nothing is said."""
    return getattr(released(f"{family}Config")(), name)


def declared(family: str, name: str) -> Any:
    """The default in a configuration's signature, before anything is made of it."""
    return inspect.signature(released(f"{family}Config").__init__).parameters[name].default


def defaults(family: str, **wanted: Any) -> Check:
    """That a family's configuration has these values when nothing is said."""
    return gives(wanted, lambda: {name: default(family, name) for name in wanted})
