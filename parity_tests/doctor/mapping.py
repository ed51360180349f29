"""Repairs of what a conversion can get wrong: rows in another order, names exchanged, matrices and layers the wrong way round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise
from typing import Any

import torch
from torch import Tensor

from parity_tests.doctor.patient import Patient
from parity_tests.doctor.repair import Repair
from reference_impl.attention import MHA, Attention
from reference_impl.norm import LayerNorm, RMSNorm
from weight_mapping.loading import assembled
from weight_mapping.rules import Concatenate, HalvesToPairs, Op, PairsToHalves, Split

Change = Callable[[Patient], Mapping[str, Tensor]]
"""The parameters that are other ones, with their values."""


def _repair(name: str, so: str, change: Change) -> Repair:
    return Repair(name=name, so=so, apply=lambda patient: patient.with_parameters(change(patient)))


def repairs(patient: Patient) -> Iterator[Repair]:
    """All that this model could need."""
    yield from _row_orders(patient)
    yield from _joined(patient)
    yield from _exchanged(patient)
    yield from _transposed(patient)
    yield from _offset_norms(patient)
    yield from _layer_orders(patient)
    yield from _head(patient)


def paths(patient: Patient, kind: type | tuple[type, ...]) -> list[tuple[str, Any]]:
    """The modules of a kind, with their paths; of a model without values."""
    meta = {name: t.to("meta") for name, t in patient.parameters.items()}
    model = assembled(patient.family, patient.config, meta)
    return [(path, module) for path, module in model.named_modules() if isinstance(module, kind)]


# --- rows of q and k ---


def _row_orders(patient: Patient) -> Iterator[Repair]:
    attentions = paths(patient, Attention)
    if not attentions:
        return

    def reordered(op: Callable[[int], Op], which: Sequence[str], by: Mapping[str, str], patient: Patient) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        for path, module in attentions:
            for projection in which:
                for part in ("weight", "bias"):
                    name = f"{path}.{projection}.{part}"
                    if name in patient.parameters:
                        heads = getattr(module, by.get(projection, ""))
                        (out[name],) = op(heads)((patient.parameters[name],))
        return out

    own = {"q_proj": "n_heads", "k_proj": "n_kv_heads"}
    both = ("q_proj", "k_proj")
    for which, said in ((both, "q and k"), (("q_proj",), "q"), (("k_proj",), "k")):
        so = f"this file's {said} rows are in the other order"
        yield _repair(f"{said} permuted once more", so, partial(reordered, PairsToHalves, which, own))
        yield _repair(f"{said} not permuted", so, partial(reordered, HalvesToPairs, which, own))
    _, first = attentions[0]
    if first.n_heads != first.n_kv_heads and first.k_proj.out_features % (2 * first.n_heads) == 0:
        name = "q and k permuted, k by the number of q's heads"
        so = "this file's q and k rows are in the other order, k's as if it had as many heads as q"
        yield _repair(name, so, partial(reordered, PairsToHalves, both, dict.fromkeys(both, "n_heads")))


# --- q, k and v joined ---


def _joined(patient: Patient) -> Iterator[Repair]:
    attentions = [(path, module) for path, module in paths(patient, MHA) if _alike(module)]
    if not attentions:
        return
    names = ("q_proj", "k_proj", "v_proj")

    def regrouped(forth: bool, patient: Patient) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        for path, module in attentions:
            size = module.q_proj.out_features
            by_head, one_by_one = ((size // module.n_heads,) * 3, module.n_heads), ((size,) * 3, 1)
            first, second = (one_by_one, by_head) if forth else (by_head, one_by_one)
            for part in ("weight", "bias"):
                own = [f"{path}.{name}.{part}" for name in names]
                if own[0] in patient.parameters:
                    joined = Concatenate(*first)(tuple(patient.parameters[name] for name in own))
                    out |= zip(own, Split(*second)(joined), strict=True)
        return out

    so = "this file's q, k and v were joined {}, and taken apart {}"
    each, whole = "head by head", "one after the other"
    yield _repair("q, k and v joined head by head", so.format(each, whole), partial(regrouped, True))
    yield _repair("q, k and v joined one after the other", so.format(whole, each), partial(regrouped, False))


def _alike(module: MHA) -> bool:
    return module.q_proj.weight.shape == module.k_proj.weight.shape == module.v_proj.weight.shape


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
                yield _repair(f"{said} swapped", so, partial(_renamed, stack, {one: other, other: one}))
        three = [module for module in modules if _spoken(module) in ("q", "k", "v")]
        if len(three) == 3 and modules[three[0]] == modules[three[1]] == modules[three[2]]:
            for order in ((1, 2, 0), (2, 0, 1)):
                to = {module: three[i] for module, i in zip(three, order, strict=True)}
                said = ", ".join(f"{_spoken(place)} as {_spoken(module)}" for module, place in to.items())
                yield _repair(f"{said}{where}", "this file's q, k and v were joined in another order", partial(_renamed, stack, to))
    if "embed.weight" in patient.parameters and "lm_head.weight" in patient.parameters:
        names = ("embed.weight", "lm_head.weight")
        so = "what this file calls the head is the embedding, and the other way round"
        yield _repair("embedding and head swapped", so, lambda p: dict(zip(names, (p.parameters[n] for n in names[::-1]), strict=True)))


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
        yield _repair(said, "this file holds it the other way round", partial(turned, [(stack, suffix)]))
    if len(square) > 1:
        so = "this file holds its square matrices the other way round"
        yield _repair("all square matrices transposed", so, partial(turned, square))
    if len(matrices) > len(square):
        so = "this file's values were written by the shapes of the transposed matrices"
        every = [(stack, suffix) for stack, suffix, _ in matrices]
        yield _repair("all matrices of the layers transposed", so, partial(turned, every))


# --- norms ---


def _offset_norms(patient: Patient) -> Iterator[Repair]:
    names = [f"{path}.weight" for path, _ in paths(patient, (RMSNorm, LayerNorm))]
    if not names:
        return

    def shifted(by: float, patient: Patient) -> dict[str, Tensor]:
        return {name: patient.parameters[name] + by for name in names if name in patient.parameters}

    yield _repair("1 taken from the weights of the norms", "this file's norms are to be read as 1 + weight", partial(shifted, 1.0))
    yield _repair("1 added to the weights of the norms", "this file's norms hold 1 + weight", partial(shifted, -1.0))


# --- layers ---


def _layer_orders(patient: Patient) -> Iterator[Repair]:
    stacks = patient.layers()
    for stack in stacks:
        n = 1 + max(layer for names in stacks[stack].values() for layer in names)
        where = f" of the {stack.split('.')[0]}" if len(stacks) > 1 else ""
        for name, so, order in _orders(n):
            yield _repair(f"{name}{where}", so, partial(_placed, stack, order))


def _orders(n: int) -> Iterator[tuple[str, str, list[int]]]:
    """Names, and for each layer of the file which of the model it is."""
    inverse: Callable[[list[int]], list[int]] = lambda order: [order.index(i) for i in range(n)]  # noqa: E731
    upwards, lexical = list(range(n)), sorted(range(n), key=str)
    if n > 2:
        yield "layers in reverse", "this file's first layer is the last", upwards[::-1]
        yield "layers counted from the second", "this file's last layer is the first", [*upwards[1:], 0]
        yield "layers counted from the last", "this file's first layer is the last, and all others one too late", [n - 1, *upwards[:-1]]
    if lexical != upwards:
        so = "this file's layers were sorted as text, 0, 1, 10, 11, …, 2"
        yield "layers in lexical order", so, lexical
        yield "layers out of lexical order", "this file's layers were in order, and sorted as if they had not been", inverse(lexical)
    for i, j in pairwise(upwards):
        order = list(upwards)
        order[i], order[j] = j, i
        yield f"layers {i} and {j} swapped", f"this file's layer {i} is layer {j}, and the other way round", order


def _placed(stack: str, order: Sequence[int], patient: Patient) -> dict[str, Tensor]:
    """Each layer of the file where it belongs. A stack whose layers are not all alike keeps what has no counterpart."""
    out: dict[str, Tensor] = {}
    for suffix, names in patient.layers()[stack].items():
        for layer, name in names.items():
            place = names.get(order[layer])
            if place is not None and patient.parameters[place].shape == patient.parameters[name].shape:
                out[place] = patient.parameters[name]
    return out


# --- the head ---


def _head(patient: Patient) -> Iterator[Repair]:
    if getattr(patient.config, "tied_head", True):
        return

    def tied(patient: Patient) -> Patient:
        return patient.with_config(replace(patient.config, tied_head=True))

    so = "this file has a head of its own, and the model's is its embedding"
    yield Repair(name="a head that is not the embedding", so=so, apply=tied)
