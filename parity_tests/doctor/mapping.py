"""Repairs of what a conversion can get wrong: names exchanged, matrices the wrong way round, norms, the head; and orders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

import torch
from torch import Tensor

from parity_tests.doctor import orders
from parity_tests.doctor.patient import Patient
from parity_tests.doctor.repair import Repair, rewritten
from reference_impl.norm import LayerNorm, RMSNorm


def repairs(patient: Patient) -> Iterator[Repair]:
    """All that this model could need."""
    yield from orders.of_rows(patient)
    yield from orders.joined(patient)
    yield from _exchanged(patient)
    yield from _transposed(patient)
    yield from _offset_norms(patient)
    yield from orders.of_layers(patient)
    yield from _head(patient)


# --- names exchanged ---


def _spoken(module: str) -> str:
    """A module as people call it: `attn.q_proj` is q."""
    return module.removesuffix("_proj").rpartition(".")[2]


def _modules(patient: Patient) -> Iterator[tuple[str, dict[str, dict[str, torch.Size]]]]:
    """By stack: the modules of a layer, with the shapes of their parts, which are the same in all layers that have them."""
    for stack, found in patient.layers().items():
        modules: dict[str, dict[str, torch.Size]] = {}
        for suffix, names in found.items():
            module, _, part = suffix.rpartition(".")
            if part not in ("weight", "bias"):
                module, part = suffix, ""
            modules.setdefault(module, {})[part] = patient.parameters[next(iter(names.values()))].shape
        yield stack, modules


def _renamed(stack: str, to: Mapping[str, str], patient: Patient) -> dict[str, Tensor]:
    """The parameters of one module of a layer put in another's place; `to` is a permutation of modules."""
    out: dict[str, Tensor] = {}
    for suffix, names in patient.layers()[stack].items():
        for module, place in to.items():
            part = suffix.removeprefix(module)
            if suffix == module + part and part in ("", ".weight", ".bias"):
                for layer, name in names.items():
                    out[f"{stack}{layer}.{place}{part}"] = patient.parameters[name]
    return out


def _exchanged(patient: Patient) -> Iterator[Repair]:
    several = len(patient.layers()) > 1
    for stack, modules in _modules(patient):
        where = f" of the {stack.split('.')[0]}" if several else ""
        for one, other in combinations(modules, 2):
            if one.rpartition(".")[0] == other.rpartition(".")[0] and modules[one] == modules[other]:
                said = f"{_spoken(one)} and {_spoken(other)}{where}"
                so = f"what this file calls {_spoken(one)} is {_spoken(other)}, and the other way round"
                yield rewritten(f"{said} swapped", so, partial(_renamed, stack, {one: other, other: one}))
        three = [module for module in modules if _spoken(module) in ("q", "k", "v")]
        if len(three) == 3 and modules[three[0]] == modules[three[1]] == modules[three[2]]:
            for order in ((1, 2, 0), (2, 0, 1)):
                to = {module: three[i] for module, i in zip(three, order, strict=True)}
                said = ", ".join(f"{_spoken(place)} as {_spoken(module)}" for module, place in to.items())
                yield rewritten(
                    f"{said}{where}",
                    "this file's q, k and v were joined in another order",
                    partial(_renamed, stack, to),
                )
    if "embed.weight" in patient.parameters and "lm_head.weight" in patient.parameters:
        names = ("embed.weight", "lm_head.weight")
        so = "what this file calls the head is the embedding, and the other way round"
        yield rewritten(
            "embedding and head swapped",
            so,
            lambda p: dict(zip(names, (p.parameters[n] for n in names[::-1]), strict=True)),
        )


# --- matrices ---


def _other_way(weight: Tensor) -> Tensor:
    """A matrix whose values were stored by the shape of its transpose."""
    return weight.reshape(weight.shape[::-1]).T.contiguous()


def _transposed(patient: Patient) -> Iterator[Repair]:
    def turned(suffixes: Sequence[tuple[str, str]], patient: Patient) -> dict[str, Tensor]:
        layers = patient.layers()
        names = [name for stack, suffix in suffixes for name in layers[stack][suffix].values()]
        return {name: _other_way(patient.parameters[name]) for name in names}

    matrices = [
        (stack, f"{module}.weight", parts["weight"])
        for stack, modules in _modules(patient)
        for module, parts in modules.items()
        if len(parts.get("weight", ())) == 2
    ]
    square = [(stack, suffix) for stack, suffix, shape in matrices if shape[0] == shape[1]]
    for stack, suffix in square:
        said = f"{suffix.removesuffix('.weight')} transposed"
        yield rewritten(said, "this file holds it the other way round", partial(turned, [(stack, suffix)]))
    if len(square) > 1:
        so = "this file holds its square matrices the other way round"
        yield rewritten("all square matrices transposed", so, partial(turned, square))
    if len(matrices) > len(square):
        so = "this file's values were written by the shapes of the transposed matrices"
        every = [(stack, suffix) for stack, suffix, _ in matrices]
        yield rewritten("all matrices of the layers transposed", so, partial(turned, every))


# --- norms ---


def _offset_norms(patient: Patient) -> Iterator[Repair]:
    names = [f"{path}.weight" for path, _ in patient.modules((RMSNorm, LayerNorm))]
    if not names:
        return

    def shifted(by: float, patient: Patient) -> dict[str, Tensor]:
        return {name: patient.parameters[name] + by for name in names if name in patient.parameters}

    yield rewritten(
        "1 taken from the weights of the norms", "this file's norms are to be read as 1 + weight", partial(shifted, 1.0)
    )
    yield rewritten("1 added to the weights of the norms", "this file's norms hold 1 + weight", partial(shifted, -1.0))


# --- the head ---


def _head(patient: Patient) -> Iterator[Repair]:
    if getattr(patient.config, "tied_head", True):
        return

    def tied(patient: Patient) -> Patient:
        return patient.with_config(replace(patient.config, tied_head=True))

    so = "this file has a head of its own, and the model's is its embedding"
    yield Repair(name="a head that is not the embedding", so=so, apply=tied)
