"""One record a family. A module here that defines `FAMILY` is a family; the tests find it by themselves."""

import importlib
import pkgutil

from parity_tests.harness.record import Family


def _all() -> dict[str, Family]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    families = [module.FAMILY for module in modules if hasattr(module, "FAMILY")]
    return {family.name: family for family in families}


FAMILIES = _all()
