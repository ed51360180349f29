"""What tensors show without any text: zeros, another scale than their sisters, NaN, layers that are the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import Tensor

from parity_tests.doctor.patient import Patient
from parity_tests.doctor.repair import Repair

FACTOR = 3.0
"""So many times larger or smaller than its sisters a matrix is of another scale, where the sisters among themselves are not."""
ZEROS = 0.25
"""So large a part of a matrix is not zero by chance."""


@dataclass(frozen=True)
class Oddity:
    """What is odd about a file. repairs: what could undo it."""

    says: str
    fatal: bool = False
    repairs: tuple[Repair, ...] = ()


@dataclass(frozen=True)
class Looked:
    """What one look at a tensor says: the root of its mean square, and the part of it that is zero."""

    size: float
    zeros: float


def oddities(patient: Patient) -> list[Oddity]:
    """All; where something is not finite, that alone, as nothing can be computed with it."""
    looked = {name: _look(t) for name, t in patient.parameters.items() if t.is_floating_point()}
    odd = [_not_finite(name, patient.parameters[name]) for name, of in looked.items() if not math.isfinite(of.size)]
    return [each for each in odd if each] or [*_zeros(patient, looked), *_scales(patient, looked), *_same(patient)]


def _look(tensor: Tensor) -> Looked:
    size = float(torch.linalg.vector_norm(tensor, dtype=torch.float32)) / math.sqrt(tensor.numel())
    return Looked(size, 1 - int(torch.count_nonzero(tensor)) / tensor.numel())


def _not_finite(name: str, tensor: Tensor) -> Oddity | None:
    wrong = ~tensor.isfinite()
    if not wrong.any():
        return None  # too large to be squared
    place = [int(i) for i in wrong.nonzero()[0]]
    first = f"{float(tensor[tuple(place)]):g} at {place} first"
    return Oddity(f"{name}: {int(wrong.sum())} of {tensor.numel()} values are not finite, {first}", fatal=True)


def _matrices(patient: Patient) -> Iterator[dict[int, str]]:
    """The matrices of layers, each with its sisters, by layer; three at least, so that one can be the odd one."""
    for suffixes in patient.layers().values():
        for names in suffixes.values():
            if len(names) >= 3 and all(patient.parameters[name].dim() >= 2 for name in names.values()):
                yield names


def _zeros(patient: Patient, looked: Mapping[str, Looked]) -> Iterator[Oddity]:
    for names in _matrices(patient):
        usual = median(looked[name].zeros for name in names.values())
        for name in names.values():
            share = looked[name].zeros
            if share >= max(ZEROS, 2 * usual):
                what = "is all zero" if share == 1 else f"is zero in {share:.0%} of its values"
                yield Oddity(f"{name} {what}; of its sisters in other layers {usual:.0%} is")


def _scales(patient: Patient, looked: Mapping[str, Looked]) -> Iterator[Oddity]:
    for names in _matrices(patient):
        sizes = {name: math.log(looked[name].size) for name in names.values() if looked[name].zeros < ZEROS}
        for name, size in sizes.items():
            others = [other for sister, other in sizes.items() if sister != name]
            if len(others) < 2:
                continue
            usual, spread = median(others), max(others) - min(others)
            if abs(size - usual) > math.log(FACTOR) + spread:
                factor = math.exp(size - usual)
                yield Oddity(
                    f"{name} is {_times(factor)} its sisters in other layers", repairs=tuple(_rescaled(name, factor))
                )


def _times(factor: float) -> str:
    return f"{factor:.3g} times as large as" if factor > 1 else f"{1 / factor:.3g} times smaller than"


def _rescaled(name: str, factor: float) -> Iterator[Repair]:
    """By the power of two and by the power of ten that come nearest."""

    def divided(by: float, patient: Patient) -> Patient:
        return patient.with_parameters({name: patient.parameters[name] / by})

    for base in (2, 10):
        by = float(base) ** round(math.log(factor, base))
        if by != 1:
            said = f"{by:g}" if by > 1 else f"1/{1 / by:g}"
            so = f"this file's {name} is of another scale than its sisters"
            yield Repair(name=f"{name} times {said}", so=so, apply=partial(divided, by), far=True)


def _same(patient: Patient) -> Iterator[Oddity]:
    """Layers of which all matrices are the same, and matrices that are those of another layer; zeros are told elsewhere."""
    for stack, suffixes in patient.layers().items():
        twins: dict[tuple[int, int], list[str]] = {}
        shown = {suffix: patient.parameters[next(iter(names.values()))] for suffix, names in suffixes.items()}
        matrices = {suffix: names for suffix, names in suffixes.items() if shown[suffix].dim() >= 2}
        for suffix, names in matrices.items():
            seen: dict[int, list[int]] = {}
            for layer, name in sorted(names.items()):
                digest = _digest(patient.parameters[name])
                if digest is None:
                    continue
                for earlier in seen.setdefault(digest, []):
                    if torch.equal(patient.parameters[names[earlier]], patient.parameters[name]):
                        twins.setdefault((earlier, layer), []).append(suffix)
                        break
                seen[digest].append(layer)
        yield from (_alike(stack, pair, found, matrices) for pair, found in twins.items())


def _alike(stack: str, pair: tuple[int, int], found: list[str], matrices: Mapping[str, object]) -> Oddity:
    one, other = pair
    if len(found) == len(matrices):
        return Oddity(f"{stack}{one} and {stack}{other} are the same layer")
    names = " and ".join(suffix.removesuffix(".weight") for suffix in found)
    return Oddity(f"{names} of {stack}{one} and {stack}{other} are the same")


def _digest(tensor: Tensor) -> int | None:
    """Of a few values; None for zeros."""
    few = tensor.flatten()[:: max(tensor.numel() // 64, 1)]
    return hash(tuple(few.tolist())) if few.any() else None
