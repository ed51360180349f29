"""transformers' side: building, calling and reading its models. Every difference of interface between releases is bridged
here, by asking for a feature and never for a version.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn

from parity_tests.harness.batches import Batch
from parity_tests.harness.blame import Whose, whose
from parity_tests.harness.compare import DTYPES
from parity_tests.harness.lens import Lens
from parity_tests.harness.record import LOADING, Backend, Call, Unit

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


class Crashed(Exception):
    """transformers raised, on input that is legal. raised: what, by the exception's name; None where it gave what cannot be
    compared. stage: a site of its own, where it keeps everything else from being compared.
    """

    def __init__(self, message: str, *, raised: str | None = None, stage: str | None = None):
        super().__init__(message)
        self.raised, self.stage = raised, stage


VERSION = transformers.__version__


class Absent(Exception):
    """The installed transformers does not have this."""


def has_class(name: str) -> bool:
    """Whether the installed release has a model class."""
    return hasattr(transformers, name)


def loaded_as(precision: str) -> torch.dtype:
    """The dtype in which transformers is given a checkpoint."""
    return DTYPES["f32" if precision == "f64" else precision]


def build(hf_class: str, source: Path, precision: str, backend: Backend, device: str = "cpu") -> Any:
    """Load a checkpoint through transformers' own loader, in evaluation mode.

    f64: loaded in float32 and widened, so that tables made at construction keep the library's float32 values.
    Errors: Absent when this release has no such class or attention; Crashed when it cannot load what it should.
    """
    if not has_class(hf_class):
        raise Absent(f"transformers {VERSION} has no {hf_class}")
    dtype_name = "dtype" if hasattr(transformers.PretrainedConfig(), "dtype") else "torch_dtype"
    where: dict[str, Any] = {"pretrained_model_name_or_path": str(source)}
    if source.is_file():
        where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    options: dict[str, Any] = {dtype_name: loaded_as(precision), "attn_implementation": backend.attention}
    options |= _experts(backend.experts, precision)
    if "generation_config" in inspect.getsource(transformers.PreTrainedModel.from_pretrained):
        options["generation_config"] = no_settings()  # the file's own may be one that a release refuses
    try:
        if source.is_file():  # a model class does not look into the file for its config in every release; AutoConfig does
            where["config"] = transformers.AutoConfig.from_pretrained(**where)
        model, told = getattr(transformers, hf_class).from_pretrained(
            **where, **options, local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # some are of classes of other packages
        if "attention implementation" in str(error) or "scaled_dot_product_attention" in str(error):
            raise Absent(f"transformers {VERSION} has no {backend.attention} attention for {hf_class}") from error
        if whose(error) is not Whose.THEIRS:
            raise
        line, name = (str(error).strip().splitlines() or [""])[-1].strip(), type(error).__name__
        raise Crashed(f"transformers raises {name} on loading: {line}", raised=name, stage=LOADING) from error
    fixed = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    model = model.to(device).eval().requires_grad_(False)
    model.not_trained, model.left_random = fixed, sorted(told["missing_keys"])
    return model.double() if precision == "f64" else model


def _experts(experts: str, precision: str) -> dict[str, str]:
    """The loader's option for how experts are run. Errors: Absent when this release, or torch, cannot run them so."""
    if hasattr(transformers.PretrainedConfig(), "_experts_implementation"):
        if experts == "grouped_mm" and precision == "f64":
            raise Absent("torch's grouped_mm has no float64 kernel")
        return {"experts_implementation": experts} if experts else {}
    if experts not in ("", "eager"):
        raise Absent(f"transformers {VERSION} has no {experts} experts")
    return {}


def config_from(kind: Any, raw: Mapping[str, Any]) -> Any:
    """transformers' config, of this class, of what config.json says: of a copy, since what is nested is changed in reading."""
    return kind.from_dict(copy.deepcopy(dict(raw)))


def frozen(model: Any) -> list[str]:
    """The parameters that transformers does not train."""
    return model.not_trained


def resolved(model: Any) -> dict[str, Any]:
    """What transformers made of a config.json, as it would write it, with every default."""
    return json.loads(model.config.to_json_string(use_diff=False))


def left_random(model: Any) -> list[str]:
    """The tensors that transformers found nothing for in the file; it may never read them."""
    return model.left_random


def lens_for(precision: str) -> Lens | nullcontext[None]:
    """The lens for float64, nothing for the precisions in which people run."""
    return Lens() if precision == "f64" else nullcontext()


def _outside_the_lens(formula: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # what fails in there is the formula's
        with torch._C.DisableTorchFunction():
            return formula(*args, **kwargs)

    return call


@contextmanager
def frozen_rope_formulas(model: nn.Module) -> Iterator[None]:
    """Rotary tables that a forward makes anew keep the library's float32 formula under the lens. Releases look it up in a
    table of formulas when they need it, or keep it on the module from its construction.
    """
    formulas = getattr(getattr(transformers, "modeling_rope_utils", None), "ROPE_INIT_FUNCTIONS", {})
    kept = [module for module in model.modules() if hasattr(module, "rope_init_fn")]
    before = dict(formulas), [module.rope_init_fn for module in kept]
    formulas.update({name: _outside_the_lens(formula) for name, formula in formulas.items()})
    for module in kept:
        module.rope_init_fn = _outside_the_lens(module.rope_init_fn)
    try:
        yield
    finally:
        formulas.update(before[0])
        for module, formula in zip(kept, before[1], strict=True):
            module.rope_init_fn = formula


@contextmanager
def crashes() -> Iterator[None]:
    """Turn what transformers raises into a `Crashed` that says so: a difference to report. What is not its fault stays as it
    is: an error of ours, such as a hook that fails, or of the machine.
    """
    try:
        yield
    except Exception as error:
        if whose(error) is not Whose.THEIRS:
            raise
        line, name = (str(error).splitlines() or [""])[0], type(error).__name__
        raise Crashed(f"transformers raises {name}: {line}", raised=name) from error


def forget(model: nn.Module) -> None:
    """Let rotary tables that grow with the sequence start again. A call at position 0 does it, or is meant to: where a
    release keeps the grown table all the same, the first one is put back, so that no comparison depends on an earlier one.
    """
    for module in model.modules():
        vars(module).pop("long_inv_freq", None)  # longrope's second set, made when first needed
        if hasattr(module, "max_seq_len_cached") and getattr(module, "rope_type", None) == "dynamic":
            nowhere = torch.zeros(1, 1, dtype=torch.long, device=next(model.parameters()).device)
            module(torch.zeros(1, 1, 1, device=nowhere.device), position_ids=nowhere)
            module.inv_freq = getattr(module, "original_inv_freq", module.inv_freq)


MOVED = {"mlp": "block_sparse_moe"}
"""Parts of modules' paths that older releases call otherwise."""


def module_at(model: nn.Module, path: str) -> nn.Module:
    """A module by its path, or by the one that an older release has for it."""
    for name in filter(None, path.split(".")):
        model = getattr(model, name if hasattr(model, name) else MOVED.get(name, name))
    return model


CACHES = ("cache", "past_key_values", "cache_params", "state")
"""What releases and families call a cache, as an argument and in the output."""

NAMES = {
    "ids": "input_ids",
    "positions": "position_ids",
    "real": "attention_mask",
    "types": "token_type_ids",
    "memory": "encoder_hidden_states",
    "memory_real": "encoder_attention_mask",
    "images": "pixel_values",
}
WITH_SOURCE = {
    "source": "input_ids",
    "source_real": "attention_mask",
    "ids": "decoder_input_ids",
    "real": "decoder_attention_mask",
}
"""What transformers calls the inputs of a batch; of an encoder-decoder model, where the source has the first names."""


def keeps_a_cache(model: Any) -> bool:
    """Whether a model keeps keys and values, and not a state."""
    return (takes(model, "cache") or takes(model, "past_key_values")) and not getattr(model, "_is_stateful", False)


def takes(model: Any, name: str) -> bool:
    """Whether a model's forward has an argument of this name."""
    return name in inspect.signature(model.forward).parameters


def can_ask(model: Any, switch: str) -> bool:
    """Whether a model, or a part of it, knows a switch such as output_attentions: by an argument, or as what it records."""
    parts = [part for part in model.modules() if isinstance(part, transformers.PreTrainedModel)]
    recorded = [getattr(part, "_can_record_outputs", None) or {} for part in parts]
    return any(takes(part, switch) for part in parts) or any(switch.removeprefix("output_") in each for each in recorded)


def named(model: Any, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A batch's inputs under transformers' names, masks as it wants them."""
    names = WITH_SOURCE if getattr(model.config, "is_encoder_decoder", False) else NAMES
    dtype = next(model.parameters()).dtype
    cast = {torch.bool: torch.long, torch.float32: dtype}
    return {names[name]: x.to(cast.get(x.dtype, x.dtype)) for name, x in inputs.items()}


def _check_devices(model: nn.Module, given: Mapping[str, Any]) -> None:
    """What lies on another device than the model is our mistake, though the exception would come out of transformers."""
    device = next(model.parameters()).device
    for name, x in given.items():
        if isinstance(x, Tensor) and x.device != device:
            raise ValueError(f"{name} lies on {x.device}, and the model on {device}: the suite has not moved it there")


def logits_of(output: Any) -> Tensor:
    """Logits of tokens, whatever a class calls them; of one without a head, what its layers give."""
    names = ("logits", "prediction_logits", "last_hidden_state")
    return next(output[name] for name in names if name in output)


def cache_of(output: Any) -> Any:
    """The cache that a model returned, or the state; None when it keeps nothing."""
    found = (getattr(output, name, None) for name in CACHES)
    return next((cache for cache in found if cache is not None), None)


def cached(cache: Any, layer: int) -> tuple[Tensor, ...] | None:
    """What a cache holds for a layer: keys and values (b, g, t, e), then those of the memory where there is one; or a state."""
    if cache is None:
        return None
    if hasattr(cache, "self_attention_cache"):
        both = cache.self_attention_cache, cache.cross_attention_cache
        return tuple(x for one in both for x in cached(one, layer) or ())
    if hasattr(cache, "ssm_states"):
        return cache.conv_states[layer], cache.ssm_states[layer]
    if hasattr(cache, "layers"):
        entry = cache.layers[layer] if layer < len(cache.layers) else None
        if entry is not None and hasattr(entry, "recurrent_states"):
            both = entry.conv_states, entry.recurrent_states  # either a state, or some by name
            return tuple(x for one in both for x in ([one] if isinstance(one, Tensor) else one.values()))
        return None if entry is None or entry.keys is None else (entry.keys, entry.values)
    if hasattr(cache, "key_cache"):
        return (cache.key_cache[layer], cache.value_cache[layer]) if layer < len(cache.key_cache) else None
    if isinstance(cache[0], Tensor):  # a list of states, each of all layers
        return tuple(x[..., layer] for x in cache)
    return tuple(x for x in cache[layer] if isinstance(x, Tensor))


class Routing(NamedTuple):
    """What a router says of n tokens: logits (n, x), and the weights and experts (n, k) that it chose. None: not said."""

    logits: Tensor | None
    weight: Tensor | None
    choice: Tensor | None


def routing(output: Any) -> Routing:
    """A router's output, which releases order in three ways: logits alone, (experts, weights), or all three."""
    if isinstance(output, Tensor):
        return Routing(output, None, None)
    if len(output) == 2:
        return Routing(None, output[1], output[0])
    return Routing(*output)


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
    cache = transformers.StaticCache(config=model.config, max_cache_len=length, **chosen)
    reads_memory = any(getattr(model.config, name, False) for name in ("is_encoder_decoder", "add_cross_attention"))
    return transformers.EncoderDecoderCache(cache, transformers.DynamicCache()) if reads_memory else cache


def _of_this_call(model: Any, inputs: Mapping[str, Tensor], given: Mapping[str, Any], cache: Any) -> dict[str, Tensor]:
    """What models with a state are told: a mask of the new tokens alone, and where releases ask for it their places."""
    n, found = inputs["ids"].shape[1] if "ids" in inputs else 0, {}
    if n and "attention_mask" in given:
        found["attention_mask"] = given["attention_mask"][:, -n:]
    if n and takes(model, "cache_position") and hasattr(cache, "ssm_states"):
        found["cache_position"] = torch.arange(n, device=inputs["ids"].device) + cache.tokens_read
    return found


def call(model: nn.Module, precision: str, given: Mapping[str, Any], *, gradients: bool = False) -> Any:
    """A forward with arguments under transformers' names, under the lens where the precision asks for it."""
    _check_devices(model, given)
    with torch.set_grad_enabled(gradients), frozen_rope_formulas(model), lens_for(precision), crashes():
        return model(**given)


def run(
    model: nn.Module,
    precision: str,
    inputs: Mapping[str, Tensor],
    *,
    cache: Any = None,
    gradients: bool = False,
    **options: Any,
) -> Any:
    """One forward, under the lens where the precision asks for it. Returns transformers' output, a tuple where one is asked
    for; an output has `logits` whatever the class calls them.
    """
    kept = {"use_cache": not gradients} if takes(model, "use_cache") else {}
    given: dict[str, Any] = {**named(model, inputs), **kept, **options}
    if cache is not None:
        given[next(name for name in CACHES if takes(model, name))] = cache
    if getattr(model, "_is_stateful", False):
        given |= _of_this_call(model, inputs, given, cache)
    output = call(model, precision, given, gradients=gradients)
    held = cache_of(output)
    if hasattr(held, "ssm_states") and "ids" in inputs:  # what does not count its tokens
        held.tokens_read = getattr(held, "tokens_read", 0) + inputs["ids"].shape[1]
    if not isinstance(output, tuple) and not hasattr(output, "logits"):
        output.logits = logits_of(output)
    return output


def no_settings() -> Any:
    """transformers' settings of generation where none is given."""
    return transformers.GenerationConfig()


@contextmanager
def nothing_of_its_own(model: Any) -> Iterator[None]:
    """No setting of the file's generation_config.json, nor of its config.json, is taken over where ours leaves one open."""
    own, model.generation_config = model.generation_config, no_settings()
    try:
        yield
    finally:
        model.generation_config = own


def generate(model: Any, precision: str, prompt: Batch, n_new: int, *, read: int = 0, **settings: Any) -> Any:
    """transformers' own generate, greedy unless `settings` say otherwise, under these settings and no others. Returns all that
    it returns; its `sequences` (b, n) without the prompt.

    read: so many tokens of the prompt were read before, and generate is given the cache that they left.
    """
    forget(model)
    given: dict[str, Any] = {}
    if read:
        before = {name: x[:, :read] if name in ("ids", "real") else x for name, x in prompt.inputs.items()}
        given = {next(name for name in CACHES if takes(model, name)): cache_of(run(model, precision, before))}
    given |= named(model, {name: x for name, x in prompt.inputs.items() if name != "positions"})
    given.setdefault("attention_mask", torch.ones_like(prompt.inputs["ids" if prompt.source is None else "source"]))
    ours: dict[str, Any] = {"do_sample": False, "max_new_tokens": n_new, "pad_token_id": 0, "return_dict_in_generate": True}
    if prompt.source is not None:
        ours["decoder_start_token_id"] = int(prompt.inputs["ids"][0, 0])
    _check_devices(model, given)
    chosen = transformers.GenerationConfig(**(ours | settings))
    with torch.no_grad(), frozen_rope_formulas(model), lens_for(precision), crashes(), nothing_of_its_own(model):
        out = model.generate(**given, generation_config=chosen)
    out.sequences = out.sequences[:, prompt.length :]
    return out


def _cloned(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, tuple | list):
        return type(value)(_cloned(v) for v in value)
    if isinstance(value, dict):
        return {k: _cloned(v) for k, v in value.items()}
    return value


def _probabilities_kept(model: Any) -> dict[str, Any]:
    """What makes eager attention return its probabilities where it does not always. The others would turn eager by it."""
    eager = getattr(model.config, "_attn_implementation", None) == "eager"
    return {"output_attentions": True} if eager and takes(model, "output_attentions") else {}


def _narrowed(kwargs: dict[str, Any], batch: Batch) -> dict[str, Any]:
    """A mask that reaches past the keys, as some releases make it, cut to their number, as their attention does itself."""
    mask = kwargs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.ndim == 4 and mask.shape[-2] == batch.length:
        kwargs["attention_mask"] = mask[..., : batch.length]
    return kwargs


def trace(model: nn.Module, precision: str, batch: Batch, units: Sequence[Unit]) -> dict[str, Call]:
    """Run a batch once and keep every unit's call, by the unit's name."""
    calls: dict[str, Call] = {}
    handles = []

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            calls[name] = Call(module, _cloned(args), _narrowed(_cloned(kwargs), batch), _cloned(output))

        return hook

    def end(name: str) -> Any:
        return lambda module, args, output: setattr(calls[name], "output", _cloned(output))

    for unit in units:
        handles.append(module_at(model, unit.hf).register_forward_hook(keep(unit.name), with_kwargs=True))
        if unit.until is not None:
            handles.append(model.get_submodule(unit.until).register_forward_hook(end(unit.name)))
    forget(model)
    try:
        output = run(model, precision, batch.inputs, **_probabilities_kept(model))
    finally:
        for handle in handles:
            handle.remove()
    cache = cache_of(output)
    for unit in units:
        if unit.layer is not None and unit.name in calls:
            calls[unit.name].cached = cached(cache, unit.layer)
    return calls
