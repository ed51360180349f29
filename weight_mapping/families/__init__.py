"""The families this package knows: every module here assigns one `Family` to FAMILY."""

from importlib import import_module
from pkgutil import iter_modules

from weight_mapping.family import Family

_MODULES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]

FAMILIES: tuple[Family, ...] = tuple(module.FAMILY for module in _MODULES)
