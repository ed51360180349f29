"""The families this package knows: every module here assigns one `Family` to FAMILY."""

from importlib import import_module
from pkgutil import iter_modules

from weight_mapping.family import Family

_MODULES = []
for module in iter_modules(__path__):
    try:
        _MODULES.append(import_module(f"{__name__}.{module.name}"))
    except Exception as error:  # TEMPORARY-TOLERANCE
        print(f"WORK IN PROGRESS: table {module.name} does not import: {error!r}", file=__import__("sys").stderr)

FAMILIES: dict[str, Family] = {name: m.FAMILY for m in _MODULES if hasattr(m, "FAMILY") for name in m.FAMILY.layouts["hf"].names}
"""By the `model_type` of config.json."""
