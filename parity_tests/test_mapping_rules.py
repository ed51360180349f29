"""The algebra of the weight mapping: operations and their inverses, and what a plan makes of a table."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from parity_tests.tiny_checkpoints import same
from weight_mapping import MappingError
from weight_mapping.patterns import found
from weight_mapping.plan import plan
from weight_mapping.rules import (
    Concatenate,
    Drop,
    HalvesToPairs,
    Op,
    PairsToHalves,
    Rule,
    Split,
    Stack,
    Table,
    Transpose,
    Unstack,
    rename,
    tie,
)

OPS = {
    "transpose": (Transpose(), [(4, 6)]),
    "transpose-experts": (Transpose(), [(3, 4, 6), (2, 5)]),
    "split": (Split((2, 3, 1)), [(6, 5)]),
    "split-per-head": (Split((2, 1), heads=4), [(12, 5)]),
    "split-bias": (Split((2, 1), heads=4), [(12,)]),
    "split-axis-1": (Split((2, 3), dim=1), [(4, 5, 6)]),
    "concatenate": (Concatenate((2, 3)), [(2, 7), (3, 7)]),
    "concatenate-per-head": (Concatenate((2, 1), heads=4), [(8, 5), (4, 5)]),
    "stack": (Stack(), [(4, 5)] * 3),
    "unstack": (Unstack(), [(3, 4, 5)]),
    "pairs-to-halves": (PairsToHalves(3), [(18, 5)]),
    "pairs-to-halves-bias": (PairsToHalves(3), [(18,)]),
    "halves-to-pairs": (HalvesToPairs(3), [(18, 5)]),
}


@pytest.mark.parametrize(("op", "shapes"), OPS.values(), ids=OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_every_operation_has_an_inverse(op: Op, shapes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
    tensors = tuple(torch.randn(shape).to(dtype) for shape in shapes)
    made = op(tensors)
    assert op.inverse.inverse == op
    back = op.inverse(made)
    assert len(back) == len(tensors)
    for before, after in zip(tensors, back, strict=True):
        assert after.dtype == before.dtype
        assert torch.equal(before, after)
    on_meta = op(tuple(t.to("meta") for t in tensors))
    assert [(t.shape, t.dtype) for t in on_meta] == [(t.shape, t.dtype) for t in made]


def test_operations_move_what_they_say() -> None:
    rows = torch.arange(12)
    assert [t.tolist() for t in Split((2, 1), heads=4)((rows,))] == [[0, 1, 3, 4, 6, 7, 9, 10], [2, 5, 8, 11]]
    assert PairsToHalves(2)((rows,))[0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


EXPERTS = Table(
    index={"layer": range(12), "expert": range(11)},
    rules=(
        rename("layers.{layer}.experts.{expert}.up.weight", "layers.{layer}.up", Stack(), Transpose()),
        Rule(("layers.{layer}.kv_b.weight",), ("layers.{layer}.k", "layers.{layer}.v"), (Split((3, 2), heads=4),)),
    ),
)


def experts_parameters(n_layers: int = 12, n_experts: int = 11) -> dict[str, Tensor]:
    shapes = {"up": (n_experts, 5, 7), "k": (12, 6), "v": (8, 6)}
    return {f"layers.{i}.{name}": torch.randn(shape) for i in range(n_layers) for name, shape in shapes.items()}


def test_experts_stack_in_numeric_order_and_heads_split() -> None:
    parameters = experts_parameters()
    mapping = plan(EXPERTS, parameters)
    tensors = mapping.backward(parameters)
    assert len(tensors) == 12 * (11 + 1)
    assert torch.equal(tensors["layers.11.experts.10.up.weight"], parameters["layers.11.up"][10].T)
    assert same(mapping.forward(tensors), parameters)
    assert same(mapping.backward(mapping.forward(tensors)), tensors)


def test_a_table_of_a_hundred_thousand_names_expands_on_meta() -> None:
    table = replace(EXPERTS, index={"layer": range(61), "expert": range(1536)})
    with torch.device("meta"):
        parameters = experts_parameters(61, 1536)
    assert len(plan(table, parameters).sources) == 61 * 1537


def test_rules_of_what_the_model_lacks_are_passed_over() -> None:
    table = Table(index={"part": ("weight", "bias")}, rules=(rename("a.{part}", "b.{part}"),))
    assert plan(table, {"b.weight": torch.zeros(2)}).sources.keys() == {"a.weight"}


def test_tied_copies() -> None:
    table = Table(index={}, rules=(tie(("embed", "head"), "weight"),))
    weight, mapping = torch.randn(3, 2), plan(table, {"weight": torch.empty(3, 2)})
    for given in ({"embed": weight}, {"head": weight}, {"embed": weight, "head": weight.clone()}):
        assert same(mapping.forward(given), {"weight": weight})
    assert same(mapping.backward({"weight": weight}), {"embed": weight})
    with pytest.raises(MappingError, match="'embed' and 'head' differ where the config ties them"):
        mapping.forward({"embed": weight, "head": weight + 1})
    with pytest.raises(MappingError, match="'embed' is missing"):
        mapping.forward({})


WRONG_TABLES = {
    "tensor-claimed-twice": ((rename("a", "x"), rename("a", "y")), (), r"'a' is claimed twice, by \(a -> x\) and by"),
    "tensor-claimed-and-dropped": (
        (rename("a", "x"), rename("b", "y")),
        (Drop(source="a", reason="no use"),),
        r"'a' is claimed twice, by \(a -> x\) and by \(Drop",
    ),
    "parameter-written-twice": ((rename("a", "x"), rename("b", "x"), rename("c", "y")), (), "'x' is claimed twice"),
    "parameter-never-written": ((rename("a", "x"),), (), "'y' is written by no rule"),
    "half-a-rule": ((Rule(("a",), ("x", "z"), (Split((1, 1)),)),), (), "writes 'z', which the model lacks"),
}


@pytest.mark.parametrize(("rules", "drops", "message"), WRONG_TABLES.values(), ids=WRONG_TABLES)
def test_wrong_table(rules: tuple[Rule, ...], drops: tuple[Drop, ...], message: str) -> None:
    with pytest.raises(MappingError, match=message):
        plan(Table(index={}, rules=rules, drops=drops), {"x": torch.zeros(1), "y": torch.zeros(1)})


def test_no_rule_casts() -> None:
    mapping = plan(Table(index={"i": range(2)}, rules=(rename("a.{i}", "x", Stack()),)), {"x": torch.zeros(2, 3)})
    with pytest.raises(MappingError, match=r"'a.0' \(torch.float32\) and 'a.1' \(torch.bfloat16\) make one parameter"):
        mapping.forward({"a.0": torch.zeros(3), "a.1": torch.zeros(3, dtype=torch.bfloat16)})


def test_a_number_of_five_thousand_digits_is_none() -> None:
    assert list(found("a.{i}.b", {"i": range(12)}, [f"a.{'1' * 5001}.b", "a.11.b", "a.12.b", "a.01.b"])) == [{"i": 11}]
