"""The families this package knows: every module here assigns one `Family` to FAMILY."""

from importlib import import_module
from pkgutil import iter_modules

from weight_mapping.family import Family

_MODULES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]

FAMILIES: dict[str, Family] = {name: m.FAMILY for m in _MODULES for name in m.FAMILY.layouts["hf"].names}
"""By the `model_type` of config.json."""
