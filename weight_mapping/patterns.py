"""Patterns of tensors' names: `{layer}` stands for every value of the index `layer`."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from string import Formatter

Index = Mapping[str, Sequence[object]]


def indices(pattern: str) -> set[str]:
    """The indices that a pattern has."""
    return {name for _, name, _, _ in Formatter().parse(pattern) if name}


def settings(names: Iterable[str], index: Index) -> Iterator[dict[str, object]]:
    """Every combination of values of these indices, the last one running fastest."""
    names = sorted(names)
    for values in itertools.product(*(index[name] for name in names)):
        yield dict(zip(names, values, strict=True))


def spelled_out(pattern: str, index: Index) -> list[str]:
    """Every name that a pattern stands for."""
    return [pattern.format(**setting) for setting in settings(indices(pattern), index)]


def found(pattern: str, index: Index, names: Iterable[str]) -> Iterator[dict[str, object]]:
    """The values at which a pattern is one of `names`. A range may be of any length."""
    parts = [(re.escape(text), name) for text, name, _, _ in Formatter().parse(pattern)]
    regex = re.compile("".join(text + (f"(?P<{name}>{_values(index[name])})" if name else "") for text, name in parts))
    for match in filter(None, map(regex.fullmatch, names)):
        values: dict[str, object] = {
            name: int(text) if isinstance(index[name], range) else text for name, text in match.groupdict().items()
        }
        if all(value in index[name] for name, value in values.items()):
            yield values


def _values(values: Sequence[object]) -> str:
    return "0|[1-9][0-9]{0,17}" if isinstance(values, range) else "|".join(re.escape(str(value)) for value in values)
