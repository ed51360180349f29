"""config.json or GGUF metadata to the reference's config and back, with every key accounted for."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from fnmatch import fnmatchcase

import torch

from reference_impl.position import RopeConfig
from reference_impl.rope_scaling import Divided
from weight_mapping.container import Checkpoint, Value
from weight_mapping.errors import MappingError, named, shown
from weight_mapping.families import FAMILIES
from weight_mapping.family import C, Default, Family, Fields, Key, Layout, ReferenceConfig
from weight_mapping.rope import SCALINGS, as_llama3

_FILE = {"hf": "config.json", "gguf": "GGUF metadata"}
_TYPE_KEY = {"hf": "model_type", "gguf": "general.architecture"}
_NESTED = ("rope_scaling", "rope_parameters")
_ROPE = ("rope.theta", "rope.type", "rope.pairing")  # whatever the scaling

_HARMLESS = {
    "hf": (
        # who wrote the file, and how it is stored
        *"_name_or_path name_or_path _commit_hash architectures model_type transformers_version".split(),
        *"torch_dtype dtype transformers.js_config unsloth_*".split(),
        # training
        *"initializer_range attention_dropout gradient_checkpointing".split(),
        # tokens, generation, and what a call returns
        *"*_token_id tokenizer_class use_cache cache_implementation return_dict output_attentions".split(),
        *"output_hidden_states id2label label2id problem_type task_specific_params finetuning_task".split(),
        *"max_length min_length max_new_tokens do_sample num_beam* temperature top_k top_p typical_p *_penalty".split(),
        *"*no_repeat_ngram_size bad_words_ids *suppress_tokens num_return_sequences early_stopping".split(),
        *"remove_invalid_values output_scores return_dict_in_generate".split(),
        # how it is computed, and advice
        *"_attn_implementation* attn_implementation chunk_size_feed_forward torchscript".split(),
        *"is_decoder max_sequence_length rope_scaling.finetuned".split(),
    ),
    "gguf": ("general.*", "tokenizer.*", "quantize.*", "split.no", "split.tensors.count"),
}
_ONLY: Mapping[str, Mapping[str, tuple[Value, ...]]] = {
    "hf": {
        **dict.fromkeys(_NESTED, (None,)),  # an object is taken apart before it comes here
        "partial_rotary_factor": (None, 1),
        "rope_scaling.partial_rotary_factor": (None, 1),
        "rope_parameters.partial_rotary_factor": (None, 1),
        "is_encoder_decoder": (None, False),
        "add_cross_attention": (None, False),
        "pruned_heads": (None, {}),
        "quantization_config": (None,),
    },
    "gguf": {"split.count": (0, 1)},
}


_WHY = {
    "quantization_config": "; quantised weights, FP8 among them, are not supported yet: take or make a copy of the "
    "checkpoint in bfloat16, without this key",
}


def find_family(raw: Mapping[str, Value], layout: str, where: str | None = None) -> Family:
    """The family that a config names. Raises MappingError when it names none, or one that is not here."""
    where, key = where or _FILE[layout], _TYPE_KEY[layout]
    known = {name: f for f in FAMILIES.values() if layout in f.layouts for name in f.layouts[layout].names}
    name = raw.get(key)
    if name is None:
        raise MappingError(f"lacks the key {key!r}; add it, one of {', '.join(known)}", where=where)
    if not isinstance(name, str) or name not in known:
        raise MappingError(f"{key} {named(name)} is not supported; supported are {', '.join(known)}", where=where)
    return known[name]


def parse_config(
    raw: Mapping[str, Value], layout: str, *, where: str | None = None, tensors_say: Fields | None = None
) -> tuple[Family, ReferenceConfig]:
    """The family and the reference's config that `raw` describes.

    layout: "hf" for config.json of transformers 4 or 5, "gguf" for GGUF metadata. where: the file, for errors.
    tensors_say: fields that the layout leaves to the tensors. Raises MappingError on a key that is unknown, has a
    value of the wrong kind, contradicts another, or is needed and lacking.
    """
    where = where or _FILE[layout]
    family = find_family(raw, layout, where)
    try:
        config = _build(family, family.layouts[layout], {**(tensors_say or {}), **_read(raw, layout, family)})
        _check_implied(raw, layout, family, config)
    except MappingError as error:
        raise MappingError(error, where=where) from None
    return family, config


def read_config(checkpoint: Checkpoint) -> tuple[Family, ReferenceConfig]:
    """The same for a checkpoint, which completes its config by its tensors."""
    raw, layout, where = checkpoint.config, checkpoint.layout, str(checkpoint.config_file)
    own = find_family(raw, layout, where).layouts[layout]
    implied: Fields = {field: look(checkpoint) for field, look in own.tensors_say.items()}
    raw = {**raw, **{key: look(checkpoint) for key, look in own.tensor_keys.items()}}
    return parse_config(raw, layout, where=where, tensors_say=implied)


def render_config(family: Family[C], config: C, dtype: torch.dtype) -> dict[str, Value]:
    """The inverse: a config.json with the keys of transformers 4, which 5 reads as well.

    Raises MappingError when config.json has no way to say what `config` is.
    """
    layout = family.layouts["hf"]
    values = _fields_of(_sayable(config))
    out: dict[str, Value] = {"model_type": layout.names[0]}
    scaling: dict[str, Value] = {}
    for key, entry in _first_keys(layout).items():
        group, _, part = key.rpartition(".")
        value = values.get(entry.field)
        if value is not None or entry.kind.null:
            (scaling if group else out)[part] = None if value is None else entry.kind.write(value)
    out["architectures"] = [family.class_of(config)]
    out |= {key: of(config) for key, of in layout.implied.items()}
    if family.rope_width is not None:
        # both names of the type: readers before 4.43 want the second; and no scaling is null, as all versions have it
        scaled = values["rope.type"] != "default"
        out["rope_scaling"] = {**scaling, "type": scaling["rope_type"]} if scaled else None
        out |= {key: scaling[key] for key in SCALINGS[values["rope.type"]].beside}
    out["torch_dtype"] = str(dtype).removeprefix("torch.")
    if parse_config(out, "hf")[1] != _sayable(config):
        raise MappingError(f"config.json cannot say what {config} is: it has other keys than this")
    return out


def _sayable(config: C) -> C:
    """The config with its scaling under a name that config.json has for it. Raises MappingError where there is none."""
    rope = vars(config).get("rope")
    if not isinstance(rope, RopeConfig) or not isinstance(rope.scaling, Divided):
        return config
    said = as_llama3(rope.scaling, rope.theta, rope.width)
    if said is None:
        why = "has no word for divisors of RoPE's frequencies, and no llama3 scaling of Llama's own gives just these"
        raise MappingError(f"config.json {why}: save the model that the GGUF file was made from")
    return replace(config, rope=replace(rope, scaling=said))  # pyright: ignore[reportCallIssue]


def is_harmless(key: str, layout: str, family: Family) -> bool:
    """Whether a key is known to change no result."""
    return any(fnmatchcase(key, pattern) for pattern in _HARMLESS[layout] + family.layouts[layout].harmless)


def _flat(raw: Mapping[str, Value]) -> Iterator[tuple[str, Value]]:
    for key, value in raw.items():
        if key in _NESTED and isinstance(value, dict):
            yield from ((f"{key}.{part}", inner) for part, inner in value.items())
        else:
            yield key, value


def _read(raw: Mapping[str, Value], layout: str, family: Family) -> Fields:
    """The fields that `raw` gives. Every key must be one of the family's, have its only value, or be harmless."""
    own = family.layouts[layout]
    known, only = own.keys, {**_ONLY[layout], **own.only}
    given: dict[str, tuple[str, Value]] = {}
    for key, value in _flat(raw):
        if key in known:
            kind = known[key].kind
            if value in kind.absent:
                continue
            read = kind.read(value)
            if read is None and not (kind.null and value is None):
                raise MappingError(f"{key} is {shown(value)} and must be {kind.says}")
            first, other = given.setdefault(known[key].field, (key, read))
            if other != read:
                both = f"{key} {shown(read)} contradicts {first} {shown(other)}"
                raise MappingError(f"{both}; keep the right one")
        elif key in only:
            if value not in only[key]:
                allowed = " or ".join(map(json.dumps, only[key]))
                raise MappingError(f"{key} is {shown(value)}, and only {allowed} is supported{_WHY.get(key, '')}")
        elif key not in own.implied and not is_harmless(key, layout, family):
            raise MappingError(f"the key {named(key)} is unknown and could change the maths; remove it if it does not")
    return {field: value for field, (_, value) in given.items()}


def _check_implied(raw: Mapping[str, Value], layout: str, family: Family[C], config: C) -> None:
    own = family.layouts[layout]
    for key, of in own.implied.items():
        if key not in own.keys and not is_harmless(key, layout, family) and raw.get(key) not in (None, of(config)):
            follows = f"and {shown(of(config))} follows from the other keys; keep what is right"
            raise MappingError(f"{key} is {shown(raw[key])}, {follows}")


def _complete(given: Fields, names: list[str], defaults: Mapping[str, Default], spelled: Callable[[str], str]) -> None:
    """Put the defaults in, each a function of what stands before it."""
    for name in names:
        if name not in given and name not in defaults:
            raise MappingError(f"lacks the key {spelled(name)!r}; add it")
    for name, default in defaults.items():
        if name not in given:
            given[name] = default(given) if callable(default) else default


def _build(family: Family[C], layout: Layout[C], given: Fields) -> C:
    spelled = layout.spelled
    names = [field.name for field in fields(family.config) if field.name != "rope"]
    _complete(given, names, layout.defaults, spelled)
    values: Fields = {name: given[name] for name in names}
    for check in family.checks:
        if not check.holds(values):
            said = {name: f"{spelled(name)} {shown(value)}" for name, value in values.items()}
            raise MappingError(check.says.format(**said))

    if family.rope_width is not None:
        values["rope"] = _build_rope(given, given[family.rope_width], layout)
    return family.config(**values)


def _build_rope(given: Fields, width: int, layout: Layout) -> RopeConfig:
    spelled = layout.spelled
    kind = given["rope.type"]
    said = {entry.field for entry in layout.keys.values()}
    supported = {name: scaling for name, scaling in SCALINGS.items() if said.issuperset(scaling.needed)}
    if kind not in supported:
        raise MappingError(f"{spelled('rope.type')} {named(kind)} is not supported yet; supported are {', '.join(supported)}")
    scaling = supported[kind]
    for name in given:
        if name.startswith("rope.") and name not in (*_ROPE, *scaling.parts):
            raise MappingError(f"{spelled(name)} means nothing to {spelled('rope.type')} {named(kind)}; remove it")
    _complete(given, list(scaling.parts), scaling.defaults, spelled)
    for name in scaling.one_a_pair:
        if len(given[name]) != width // 2:
            raise MappingError(f"{spelled(name)} has {len(given[name])} numbers, and RoPE turns {width // 2} pairs")
    return RopeConfig(
        theta=given["rope.theta"],
        width=width,
        pairing=given["rope.pairing"],
        scaling=scaling.make(**{part.removeprefix("rope."): given[part] for part in scaling.parts}),
    )


def _fields_of(config: ReferenceConfig) -> Fields:
    """The inverse of `_build`."""
    out: Fields = {field.name: getattr(config, field.name) for field in fields(config)}
    rope = out.pop("rope", None)
    if not isinstance(rope, RopeConfig):
        return out
    out |= {f"rope.{field.name}": getattr(rope.scaling, field.name) for field in fields(rope.scaling)}
    kind = next(kind for kind, scaling in SCALINGS.items() if scaling.make is type(rope.scaling))
    return out | {"rope.theta": rope.theta, "rope.type": kind, "rope.pairing": rope.pairing}


def _first_keys(layout: Layout) -> dict[str, Key]:
    return {key: entry for key, entry in layout.keys.items() if layout.spelled(entry.field) == key}
