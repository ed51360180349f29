"""Switches the suite on for this checkout. What it does stands in parity_tests/suite.py."""

from pathlib import Path

import pytest

from parity_tests import plugin

if Path(__file__).parent != plugin.CHECKOUT:
    raise pytest.UsageError(f"parity_tests is installed from {plugin.CHECKOUT}; here say python -m pytest")

pytest_plugins = ["parity_tests.suite"]
