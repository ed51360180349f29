"""What the facts are put to: tiny models with deterministic weights, and ways to look into a run."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from parity_tests import fixtures
from parity_tests.facts.record import released
from parity_tests.fixtures.values import around_one, bias, integers
from parity_tests.harness.compare import BAR
from parity_tests.harness.hf import Absent
from parity_tests.harness.lens import Lens

_DECODER = {
    "vocab_size": 37,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_SEQ2SEQ = {
    "vocab_size": 37,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": None,
}
TINY: dict[str, dict[str, Any]] = {
    "Llama": _DECODER,
    "Qwen2": _DECODER,
    "Qwen3": _DECODER | {"head_dim": 8},
    "Qwen3Moe": _DECODER | {"head_dim": 8, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "Mixtral": _DECODER | {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": None},
    "DeepseekV3": _DECODER
    | {
        "num_key_value_heads": 4,
        "q_lora_rank": 12,
        "kv_lora_rank": 9,
        "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
    },
    "GPT2": {
        "vocab_size": 37,
        "n_positions": 32,
        "n_embd": 24,
        "n_layer": 2,
        "n_head": 4,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "Bert": {
        "vocab_size": 37,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 40,
        "max_position_embeddings": 32,
    },
    "Marian": _SEQ2SEQ,
    "FNet": {
        "vocab_size": 37,
        "hidden_size": 24,
        "num_hidden_layers": 1,
        "intermediate_size": 40,
        "max_position_embeddings": 32,
    },
    "Rwkv": {"vocab_size": 37, "hidden_size": 24, "attention_hidden_size": 24, "num_hidden_layers": 2, "context_length": 32},
    "Mamba": {"vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 2, "state_size": 4, "time_step_rank": 4},
}


def values(name: str, *shape: int) -> Tensor:
    """float64 in [-2, 2), from the name alone."""
    return integers(name, shape, 8).double() / 64


def filled(module: nn.Module) -> Any:
    """The module in float64, evaluation mode, with weights and biases from their names, at a scale that shows."""
    module = module.double().eval().requires_grad_(False)
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if not tensor.is_floating_point() or "inv_freq" in name or "embed_positions" in name:
            continue  # tables stay what they are
        if tensor.ndim > 1:
            tensor.copy_(integers(name, tensor.shape, 8) * 2.0 ** round(-7 + math.log2(3 / math.sqrt(tensor.shape[-1]))))
        else:
            tensor.copy_((bias if name.endswith("bias") else around_one)(name, tensor.shape))
    return module


def config(family: str, **changes: Any) -> Any:
    """A tiny configuration, with eager attention and eager experts unless told otherwise."""
    experts = changes.pop("experts", "eager")
    made = released(f"{family}Config")(**({"attn_implementation": "eager"} | TINY[family] | changes))
    if experts and hasattr(made, "_experts_implementation"):
        made._experts_implementation = experts
    return made


@cache
def _model(kind: str, family: str, changes: tuple[tuple[str, Any], ...]) -> Any:
    unfrozen = {name: dict(value) if isinstance(value, tuple) else value for name, value in changes}
    return filled(released(f"{family}{kind}")(config(family, **unfrozen)))


def model(family: str, kind: str = "Model", **changes: Any) -> Any:
    """A tiny model of its own: what a check does to it, no other sees."""
    frozen = {name: tuple(value.items()) if isinstance(value, dict) else value for name, value in changes.items()}
    return copy.deepcopy(_model(kind, family, tuple(frozen.items())))


def hub_config(name: str) -> dict[str, Any]:
    """A config.json as a hub has it."""
    return json.loads((Path(fixtures.__file__).parent / "configs" / "published" / f"{name}.json").read_text())


def published(family: str, kind: str = "Model", **changes: Any) -> Any:
    """A model at its configuration's default size, without memory for its weights."""
    with torch.device("meta"):
        return released(f"{family}{kind}")(released(f"{family}Config")(**changes))


def internals(family: str) -> Any:
    """The module of transformers that a family's classes are in."""
    name = {"DeepseekV3": "deepseek_v3", "Qwen3Moe": "qwen3_moe"}.get(family, family.lower())
    released(f"{family}Config")
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def internal(family: str, name: str) -> Any:
    """A class or function of a family that transformers does not export. Errors: Absent."""
    found = internals(family)
    if not hasattr(found, name):
        raise Absent(f"this transformers has no {name}")
    return getattr(found, name)


def ids(length: int, rows: int = 1) -> Tensor:
    """Token ids (rows, length), none of them a special one."""
    return (integers(f"ids {rows}", (rows, length), 8) + 128).long() % 33 + 4


def run(model: Any, **inputs: Any) -> Any:
    """One call under the float64 lens."""
    with torch.no_grad(), Lens():
        return model(**inputs)


@dataclass
class Seen:
    """The calls of one module during a run; `x` and `y` are what went in first and what came out of the last call."""

    module: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    output: Any = None
    times: int = 0

    @property
    def x(self) -> Tensor:
        return next(v for v in (*self.args, *self.kwargs.values()) if isinstance(v, Tensor))

    @property
    def y(self) -> Tensor:
        return self.output[0] if isinstance(self.output, tuple) else self.output


def watch(model: Any, *paths: str, **inputs: Any) -> tuple[Any, ...]:
    """Run a model and keep what its modules at `paths` were given and gave. Returns one `Seen` a path."""
    seen = {path: Seen(model.get_submodule(path)) for path in paths}
    handles = []
    for record in seen.values():

        def keep(module: nn.Module, args: Any, kwargs: Any, output: Any, record: Seen = record) -> None:
            record.args, record.kwargs, record.output = copy.copy(args), dict(kwargs), output
            record.times += 1

        handles.append(record.module.register_forward_hook(keep, with_kwargs=True))
    try:
        run(model, **inputs)
    finally:
        for handle in handles:
            handle.remove()
    return tuple(seen.values())


@contextmanager
def counted(module: Any, name: str) -> Iterator[mock.Mock]:
    """Count the calls of a function of a Python module while this is on."""
    if not hasattr(module, name):
        raise Absent(f"this transformers has no {name} in {module.__name__}")
    with mock.patch.object(module, name, wraps=getattr(module, name)) as spy:
        yield spy


def operators(of: Callable[[], Any]) -> list[str]:
    """The names of torch's operators that a call runs."""

    class Names(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(str(func).removeprefix("aten."))
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Names() as seen:
        of()
    return seen.names


def close(found: Any, wanted: Any, bar: float = BAR) -> bool:
    """Errors: AssertionError that tells by how much they differ, relative to the largest value."""
    found, wanted = (torch.as_tensor(x) for x in (found, wanted))
    assert found.shape == wanted.shape, f"its shape is {tuple(found.shape)}, not {tuple(wanted.shape)}"
    error = float((found.double() - wanted.double()).abs().max() / wanted.double().abs().max())
    assert error < bar, f"it is off by {error:.1e}"
    return True


def moved(of: Callable[[Tensor], Tensor], x: Tensor, at: int) -> list[bool]:
    """For each position of `of(x)` (b, s, ...): does it change when x (b, s, ...) changes at position `at`?"""
    other = x.clone()
    other[:, at] = (other[:, at] + 1) if x.is_floating_point() else (other[:, at] + 1) % 33
    with torch.no_grad(), Lens():
        change = (of(other) - of(x)).abs()
    return (change.transpose(0, 1).flatten(1).amax(1) > 0).tolist()


def biases(module: nn.Module) -> list[str]:
    """The names of a module's biases."""
    return [name for name, _ in module.named_parameters() if name.endswith("bias")]


def sizes(linear: nn.Linear) -> tuple[int, int]:
    """Width in, width out."""
    return linear.in_features, linear.out_features


def has(module: nn.Module, kind: type) -> bool:
    """Whether a module of this kind is anywhere in it."""
    return any(isinstance(each, kind) for each in module.modules())


def over(cache: Any, net: nn.Module) -> dict[str, Any]:
    """The argument that continues a cache, by the name that this release gives it."""
    name = "cache" if "cache" in inspect.signature(net.forward).parameters else "past_key_values"
    return {name: cache, "use_cache": True}
