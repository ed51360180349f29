"""What there is to test, as pytest asks for it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from parity_tests.families import FAMILIES
from parity_tests.harness.checkpoints import REFUSED
from parity_tests.harness.names import PRECISIONS
from parity_tests.harness.points import (
    Options,
    alone_in,
    cases,
    config_of,
    deviation_cases,
    is_deep,
    points,
    rounded,
    usual,
)
from parity_tests.harness.schedules import at_edges
from parity_tests.harness.siblings import siblings_of


def options_of(config: pytest.Config) -> Options:
    """The command line's choice."""
    chosen = config.option
    return Options(
        families=chosen.family,
        precisions=chosen.precision,
        attention=chosen.attention,
        experts=chosen.experts,
        device=chosen.device,
        checkpoints=chosen.checkpoint,
        trained=chosen.trained,
        refused=config.stash.get(REFUSED, {}),
    )


def families_of(metafunc: pytest.Metafunc, options: Options) -> list[str] | None:
    """The families that `-k` can select: a word that is part of families' names means those, and no test of another is made.
    None for all.
    """
    words = re.split(r"\s+and\s+", metafunc.config.option.keyword.strip().lower())
    if not all(re.fullmatch(r"(not\s+)?[\w.]+", word) for word in words):
        return options.families  # any other expression is left to pytest
    outside = " ".join([metafunc.definition.nodeid, *(mark.name for mark in metafunc.definition.iter_markers())]).lower()
    named = [{name for name in FAMILIES if word in name} for word in words if word not in outside]
    chosen = set.intersection(set(options.families or FAMILIES), *filter(None, named))
    return [name for name in FAMILIES if name in chosen]


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Give a test its points, its deviations or its cases, unless it names them itself."""
    if any("case" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")):
        return
    options = options_of(metafunc.config)
    options = replace(options, families=families_of(metafunc, options))
    if "point" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("level")
        found = points(options, marker.args[0]) if marker else []
        metafunc.parametrize("point", found, ids=map(str, found))
    elif "deviation" in metafunc.fixturenames:
        found = deviation_cases(options)
        ids = [f"{case}-{deviation.name.replace(' ', '_')}" for case, deviation in found]
        metafunc.parametrize(("case", "deviation"), found, ids=ids)
    elif "case" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("precisions")
        found = cases(options, marker.args if marker else PRECISIONS)
        if level := metafunc.definition.get_closest_marker("level"):
            found = [c for c in found if (alone := alone_in(c.family, c.variant)) is None or level.args[0] in alone.levels]
        if metafunc.definition.get_closest_marker("one_backend"):
            found = [case for case in found if usual(case)]
        if metafunc.definition.get_closest_marker("rounding_once"):
            found = [c for c in found if c.precision == "f64" or (rounded(c) and (usual(c) or c.precision == "f32"))]
        if metafunc.definition.get_closest_marker("trained"):
            found = [case for case in found if case.trained]
        if metafunc.definition.get_closest_marker("tiny"):
            found = [case for case in found if not case.trained]
        if metafunc.definition.get_closest_marker("broad"):
            found = [case for case in found if alone_in(case.family, case.variant) is None]
        if metafunc.definition.get_closest_marker("shallow"):
            found = [case for case in found if case.trained or not is_deep(case.family, case.variant)]
        if field := metafunc.definition.get_closest_marker("has"):
            found = [case for case in found if hasattr(config_of(case), field.args[0])]
        if metafunc.definition.get_closest_marker("causal"):
            found = [case for case in found if case.record.reads(config_of(case)).causal]
        if metafunc.definition.get_closest_marker("first"):
            of_text = [case for case in found if not case.record.reads(config_of(case)).memory]
            first = {case.family: case.variant for case in reversed(of_text)}
            found = [case for case in of_text if case.variant == first[case.family]]
        if "edge" in metafunc.fixturenames:
            edges = [(c, kind, edge) for c in found for kind in c.record.caches for edge in at_edges(config_of(c))]
            metafunc.parametrize(("case", "kind", "edge"), edges, ids=["-".join(map(str, edge)) for edge in edges])
        elif "kind" in metafunc.fixturenames:
            pairs = [(case, kind) for case in found for kind in case.record.caches]
            metafunc.parametrize(("case", "kind"), pairs, ids=[f"{case}-{kind}" for case, kind in pairs])
        elif "sibling" in metafunc.fixturenames:
            pairs = [(case, name) for case in found for name in siblings_of(case)]
            metafunc.parametrize(("case", "sibling"), pairs, ids=[f"{case}-{name}" for case, name in pairs])
        else:
            metafunc.parametrize("case", found, ids=map(str, found))


def trained_case(item: pytest.Item) -> str:
    """The case of a test of a trained model, as text; empty for every other test."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    case = getattr(parameters.get("point"), "case", parameters.get("case"))
    return str(case) if getattr(case, "trained", False) else ""
