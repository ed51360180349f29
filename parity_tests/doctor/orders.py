"""Repairs of order: of the rows of q and k, of q, k and v in one matrix, of layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from torch import Tensor

from parity_tests.doctor.patient import Patient
from parity_tests.doctor.repair import Repair, rewritten
from reference_impl.attention import MHA, Attention
from weight_mapping.rules import Concatenate, HalvesToPairs, Op, PairsToHalves, Split

# --- rows of q and k ---


def of_rows(patient: Patient) -> Iterator[Repair]:
    """Rows of q and k, or of one of them, brought from neighbours that turn together to halves of a head, or back."""
    attentions = patient.modules(Attention)
    if not attentions:
        return

    def reordered(
        op: Callable[[int], Op], which: Sequence[str], by: Mapping[str, str], patient: Patient
    ) -> dict[str, Tensor]:
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
        yield rewritten(f"{said} permuted once more", so, partial(reordered, PairsToHalves, which, own), far=True)
        yield rewritten(f"{said} not permuted", so, partial(reordered, HalvesToPairs, which, own), far=True)
    _, first = attentions[0]
    if first.n_heads != first.n_kv_heads and first.k_proj.out_features % (2 * first.n_heads) == 0:
        name = "q and k permuted, k by the number of q's heads"
        so = "this file's q and k rows are in the other order, k's as if it had as many heads as q"
        yield rewritten(name, so, partial(reordered, PairsToHalves, both, dict.fromkeys(both, "n_heads")), far=True)


# --- q, k and v joined ---


def joined(patient: Patient) -> Iterator[Repair]:
    """One matrix of q, k and v taken apart the other way."""
    attentions = [(path, module) for path, module in patient.modules(MHA) if _alike(module)]
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
    yield rewritten("q, k and v joined head by head", so.format(each, whole), partial(regrouped, True))
    yield rewritten("q, k and v joined one after the other", so.format(whole, each), partial(regrouped, False))


def _alike(module: MHA) -> bool:
    return module.q_proj.weight.shape == module.k_proj.weight.shape == module.v_proj.weight.shape


# --- layers ---


def of_layers(patient: Patient) -> Iterator[Repair]:
    """The layers of each stack put in another order."""
    stacks = patient.layers()
    for stack in stacks:
        n = 1 + max(layer for names in stacks[stack].values() for layer in names)
        where = f" of the {stack.split('.')[0]}" if len(stacks) > 1 else ""
        for name, so, order in _orders(n):
            yield rewritten(f"{name}{where}", so, partial(_placed, stack, order))
        for i in range(n - 1):
            so = f"this file's layer {i} is layer {i + 1}, and the other way round"
            order = [*range(i), i + 1, i, *range(i + 2, n)]
            yield rewritten(f"layers {i} and {i + 1} swapped{where}", so, partial(_placed, stack, order), local=True)


def _orders(n: int) -> Iterator[tuple[str, str, list[int]]]:
    """Names, what the file is then, and for each layer of the file which of the model it is."""
    upwards, lexical = list(range(n)), sorted(range(n), key=str)
    if n > 2:
        yield "layers in reverse", "this file's first layer is the last", upwards[::-1]
        yield "layers counted from the second", "this file's last layer is the first", [*upwards[1:], 0]
        so = "this file's first layer is the last, and all others one too late"
        yield "layers counted from the last", so, [n - 1, *upwards[:-1]]
    if lexical != upwards:
        yield "layers in lexical order", "this file's layers were sorted as text, 0, 1, 10, 11, …, 2", lexical
        so = "this file's layers were in order, and sorted as if they had not been"
        yield "layers out of lexical order", so, [lexical.index(i) for i in upwards]


def _placed(stack: str, order: Sequence[int], patient: Patient) -> dict[str, Tensor]:
    """Each layer of the file where it belongs. A stack whose layers are not all alike keeps what has no counterpart."""
    out: dict[str, Tensor] = {}
    for names in patient.layers()[stack].values():
        for layer, name in names.items():
            place = names.get(order[layer])
            if place is not None and patient.parameters[place].shape == patient.parameters[name].shape:
                out[place] = patient.parameters[name]
    return out
