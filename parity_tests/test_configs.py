"""What transformers makes of a config.json is what the reference makes of it, field by field: theta, scaling, eps, window,
activation, tying, widths, routers' settings. A field that it passes over in the computation shows elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from parity_tests.harness import hf
from parity_tests.harness.case import Case, twin
from parity_tests.harness.compare import measured, refused
from parity_tests.harness.points import config_of
from parity_tests.harness.recorder import Recorder
from weight_mapping import MappingError
from weight_mapping.config import find_family, parse_config

pytestmark = [pytest.mark.level("config"), pytest.mark.precisions("f64"), pytest.mark.one_backend, pytest.mark.tiny]


def said_of(case: Case) -> Any:
    """transformers' config of a case, read as the reference's. Only keys that a field comes from are read, for it writes the
    defaults of all that it could do.
    """
    said = hf.resolved(twin(case))
    keys = find_family(said, "hf").layouts["hf"].keys
    read = {"model_type", *keys, *(key.partition(".")[0] for key in keys)}
    return parse_config({key: value for key, value in said.items() if key in read}, "hf")[1]


def values_of(config: Any, within: str = "config") -> Iterator[tuple[str, Any]]:
    """Each field by its name; RoPE's one by one, and its scaling as one."""
    for field in fields(config):
        value, name = getattr(config, field.name), f"{within}.{field.name}"
        if is_dataclass(value) and within == "config":
            yield from values_of(value, name)
        else:
            yield name, value


def test_config(case: Case, recorder: Recorder) -> None:
    recorder.run(case, "accumulated", "config")
    try:
        said = dict(values_of(said_of(case)))
    except MappingError as error:
        recorder.check(case, "config", refused(f"what transformers makes of it: {error}"))
        return
    for site, value in values_of(config_of(case)):
        agrees = measured(0.0, 0.0)
        recorder.check(case, site, agrees if said[site] == value else refused(f"{said[site]} there, {value} here"))
