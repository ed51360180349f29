"""An exception is charged to whose it is: to transformers, to this project, or to the machine."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from parity_tests.harness import hf
from parity_tests.harness.batches import Batch
from parity_tests.harness.blame import Whose, machine, whose
from parity_tests.harness.case import Case, twin
from parity_tests.harness.lens import Lens
from parity_tests.harness.ours import cast
from parity_tests.harness.record import Backend
from parity_tests.harness.run import compare

CASE = Case("llama", "gqa", "f64", Backend("eager"))
IDS = torch.arange(1, 8)[None]


@pytest.fixture
def theirs() -> nn.Module:
    """A model of transformers of this test's own."""
    return hf.build(CASE.record.hf_class, CASE.source, CASE.precision, CASE.backend)


def raised_in(model: nn.Module, inputs: dict[str, Any], **options: Any) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011, as which one it is, is the question
        hf.run(model, "f64", inputs, **options)
    return caught.value


def planted(*args: Any, **options: Any) -> None:
    raise OverflowError("planted")


def full(*args: Any, **options: Any) -> None:
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")


def test_what_fails_in_transformers_own_code_is_its_own(theirs: Any) -> None:
    """Under the lens too, though each of its operations passes through code of ours."""
    theirs.model.layers[1].mlp.up_proj.weight.data = torch.zeros(3, 5, dtype=torch.float64)
    error = raised_in(theirs, {"ids": IDS})
    assert isinstance(error, hf.Crashed)
    assert error.raised == "RuntimeError"


def test_a_fault_that_a_test_plants_there_is_its_own(theirs: Any) -> None:
    theirs.model.layers[1].mlp.forward = planted
    assert isinstance(raised_in(theirs, {"ids": IDS}), hf.Crashed)


LOADED: dict[str, tuple[Callable[..., Any], type[Exception]]] = {
    "theirs": (planted, hf.Crashed),
    "ours": (lambda *args, **options: cast(nn.Module(), {"x": torch.ones(1)}), StopIteration),
    "machine": (full, RuntimeError),
}


@pytest.mark.parametrize(("broken", "raised"), LOADED.values(), ids=LOADED)
def test_what_fails_on_loading(
    broken: Callable[..., Any], raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn.Linear, "__init__", broken)
    with pytest.raises(raised) as caught:
        hf.build(CASE.record.hf_class, CASE.source, CASE.precision, CASE.backend)
    assert caught.type is raised


def test_a_hook_of_ours_that_fails_is_ours() -> None:
    """It runs in the middle of transformers' forward."""

    class NoBatch(SimpleNamespace):
        @property
        def length(self) -> int:
            raise LookupError("a batch without a length")

    batch: Any = NoBatch(inputs={"ids": IDS})
    with pytest.raises(LookupError, match="a batch without a length"):
        hf.trace(twin(CASE), "f64", batch, [unit for unit in compare(CASE).units if unit.hf.endswith("self_attn")])


def test_a_tensor_of_ours_on_another_device_is_ours(theirs: Any) -> None:
    elsewhere = {"ids": IDS, "real": torch.ones_like(IDS, device="meta")}
    for call in (
        lambda: hf.run(theirs, "f64", elsewhere),
        lambda: hf.generate(theirs, "f64", Batch(name="elsewhere", inputs=elsewhere), 2),
    ):
        with pytest.raises(ValueError, match="attention_mask lies on meta, and the model on cpu"):
            call()


MACHINE: dict[str, BaseException] = {
    "gpu-memory": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation"),
    "memory": MemoryError(),
    "allocator": RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to"),
    "kernels": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "assert": RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be reported later"),
    "library": RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
}


@pytest.mark.parametrize("error", MACHINE.values(), ids=MACHINE)
def test_what_the_machine_lacks_is_its_own(error: BaseException, theirs: Any) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise error

    theirs.model.layers[1].mlp.forward = broken
    assert raised_in(theirs, {"ids": IDS}) is error, "it is not charged to transformers"
    said = machine(error) or ""
    assert "--device" in said
    assert len(said) < 300
    assert "\n" not in said


def test_what_is_raised_because_of_the_machine_is_the_machines() -> None:
    with pytest.raises(ValueError, match="cannot load") as caught:
        raise ValueError("cannot load") from MemoryError()
    assert whose(caught.value) is Whose.MACHINE


def test_words_in_another_exception_are_no_fault_of_the_machine() -> None:
    assert machine(KeyError("out of memory")) is None
    assert machine(RuntimeError("The size of tensor a (3) must match the size of tensor b (5)")) is None


def test_the_lens_is_passed_through() -> None:
    with pytest.raises(RuntimeError) as caught, Lens():
        torch.matmul(torch.ones(3), torch.ones(5))
    assert whose(caught.value) is Whose.OURS, "nobody but this test called"
