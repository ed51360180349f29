"""transformers' side: building, calling and reading its models. Every difference of interface between releases is bridged
here, by asking for a feature and never for a version.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from parity_tests.harness.batches import Batch
from parity_tests.harness.compare import DTYPES
from parity_tests.harness.lens import Lens
from parity_tests.harness.record import Call, Unit

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


class Absent(Exception):
    """The installed transformers does not have this."""


def has_class(name: str) -> bool:
    """Whether the installed release has a model class."""
    return hasattr(transformers, name)


def build(hf_class: str, source: Path, precision: str, attention: str, device: str = "cpu") -> nn.Module:
    """Load a checkpoint through transformers' own loader, in evaluation mode.

    f64: loaded in float32 and widened, so that tables made at construction keep the library's float32 values.
    Errors: Absent when this release has no such class or attention.
    """
    if not has_class(hf_class):
        raise Absent(f"transformers {transformers.__version__} has no {hf_class}")
    loaded_as = DTYPES["f32" if precision == "f64" else precision]
    dtype_name = "dtype" if hasattr(transformers.PretrainedConfig(), "dtype") else "torch_dtype"
    where = {"pretrained_model_name_or_path": str(source)}
    if source.is_file():
        where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    try:
        model = getattr(transformers, hf_class).from_pretrained(
            **where, **{dtype_name: loaded_as}, attn_implementation=attention, local_files_only=True
        )
    except ValueError as error:
        if "attention implementation" in str(error) or "scaled_dot_product_attention" in str(error):
            raise Absent(f"transformers {transformers.__version__} has no {attention} attention for {hf_class}") from error
        raise
    model = model.to(device).eval().requires_grad_(False)
    return model.double() if precision == "f64" else model


def lens_for(precision: str) -> Lens | nullcontext[None]:
    """The lens for float64, nothing for the precisions in which people run."""
    return Lens() if precision == "f64" else nullcontext()


@contextmanager
def frozen_rope_formulas() -> Iterator[None]:
    """Rotary tables that a forward makes anew keep the library's float32 formula under the lens."""
    try:
        from transformers import modeling_rope_utils
    except ImportError:
        yield
        return
    original = dict(modeling_rope_utils.ROPE_INIT_FUNCTIONS)

    def unseen(formula: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with torch._C.DisableTorchFunction():
                return formula(*args, **kwargs)

        return call

    modeling_rope_utils.ROPE_INIT_FUNCTIONS.update({name: unseen(f) for name, f in original.items()})
    try:
        yield
    finally:
        modeling_rope_utils.ROPE_INIT_FUNCTIONS.update(original)


def forget(model: nn.Module) -> None:
    """Let rotary tables that grow with the sequence start again: a call at position 0 does it."""
    for module in model.modules():
        if hasattr(module, "max_seq_len_cached") and getattr(module, "rope_type", None) == "dynamic":
            nowhere = torch.zeros(1, 1, dtype=torch.long, device=next(model.parameters()).device)
            module(torch.zeros(1, 1, 1, device=nowhere.device), position_ids=nowhere)


def _cache_argument(forward: Any) -> str:
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


def cache_of(output: Any) -> Any:
    """The cache that a model returned."""
    return output.cache if getattr(output, "cache", None) is not None else output.past_key_values


def cached(cache: Any, layer: int) -> tuple[Tensor, Tensor] | None:
    """Keys and values (b, g, t, e) that a cache holds for a layer."""
    if cache is None:
        return None
    if hasattr(cache, "layers"):
        entry = cache.layers[layer]
        return entry.keys, entry.values
    if hasattr(cache, "key_cache"):
        return cache.key_cache[layer], cache.value_cache[layer]
    return cache[layer][0], cache[layer][1]


def static_cache(model: Any, rows: int, length: int) -> Any:
    """A preallocated cache for so many rows and tokens."""
    names = inspect.signature(transformers.StaticCache.__init__).parameters
    parameter = next(model.parameters())
    optional = {
        "max_batch_size": rows,
        "batch_size": rows,
        "device": parameter.device,
        "dtype": parameter.dtype,
    }
    chosen = {name: value for name, value in optional.items() if name in names}
    return transformers.StaticCache(config=model.config, max_cache_len=length, **chosen)


def run(
    model: nn.Module,
    precision: str,
    ids: Tensor,
    *,
    positions: Tensor | None = None,
    real: Tensor | None = None,
    cache: Any = None,
) -> Any:
    """One forward of a causal model, under the lens where the precision asks for it. Returns transformers' output."""
    given: dict[str, Any] = {"input_ids": ids, "use_cache": True}
    if positions is not None:
        given["position_ids"] = positions
    if real is not None:
        given["attention_mask"] = real.long()
    if cache is not None:
        given[_cache_argument(model.forward)] = cache
    with torch.no_grad(), frozen_rope_formulas(), lens_for(precision):
        return model(**given)


def generate(
    model: Any, precision: str, ids: Tensor, n_new: int, *, real: Tensor | None = None, **options: Any
) -> Tensor:
    """Greedy continuation (b, n_new) by transformers' own generate."""
    forget(model)
    mask = torch.ones_like(ids) if real is None else real.long()
    settings = {"do_sample": False, "max_new_tokens": n_new, "pad_token_id": 0, "eos_token_id": None} | options
    with torch.no_grad(), frozen_rope_formulas(), lens_for(precision):
        out = model.generate(input_ids=ids, attention_mask=mask, generation_config=None, **settings)
    return out[:, ids.shape[1] :]


def _cloned(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, tuple | list):
        return type(value)(_cloned(v) for v in value)
    if isinstance(value, dict):
        return {k: _cloned(v) for k, v in value.items()}
    return value


def trace(model: nn.Module, precision: str, batch: Batch, units: Sequence[Unit]) -> dict[str, Call]:
    """Run a batch once and keep every unit's call, by the unit's name."""
    calls: dict[str, Call] = {}
    handles = []

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            calls[name] = Call(_cloned(args), _cloned(kwargs), _cloned(output))

        return hook

    for unit in units:
        handles.append(model.get_submodule(unit.hf).register_forward_hook(keep(unit.name), with_kwargs=True))
    forget(model)
    try:
        output = run(model, precision, batch.ids, positions=batch.positions, real=batch.real)
    finally:
        for handle in handles:
            handle.remove()
    cache = cache_of(output)
    for name, call in calls.items():
        parts = name.split(".")
        if parts[0] == "layers":
            call.cached = cached(cache, int(parts[1]))
    return calls
