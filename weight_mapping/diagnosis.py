"""Why a file's names are not those that were expected: what wrapped them, which one was renamed. Apart from loading."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from difflib import SequenceMatcher

import torch

from weight_mapping.errors import named
from weight_mapping.plan import Plan

WRAPPERS = {
    "_orig_mod": ("torch.compile", "save the model inside, model._orig_mod"),
    "module": ("DataParallel, DistributedDataParallel or DeepSpeed", "save the model inside, model.module"),
    "base_model.model": ("PEFT", "merge the adapter, model.merge_and_unload(), and save what that gives"),
    "_forward_module": ("Lightning Fabric", "save the model inside, model.module"),
    "_fsdp_wrapped_module": ("FSDP", "gather the full state_dict and save that"),
    "_checkpoint_wrapped_module": ("activation checkpointing", "save the model from before it was wrapped"),
}
"""What wraps a model, and so names its tensors: by the words that it leaves in them."""

_WORDS = re.compile(rf"(?:^|(?<=\.))({'|'.join(map(re.escape, WRAPPERS))})\.")

ADAPTERS = re.compile(r"(^|[._])(lora_|lokr_|hada_|ia3_|vera_|oft_|boft_|prompt_embeddings|modules_to_save)")
"""What adapters call their tensors."""

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")

MERGE = "load it onto its base model with PEFT, merge_and_unload(), and save what that gives"

FOREIGN = (
    (re.compile(r"rope_factors_(long|short)\.weight"), "holds longrope's divisors, which are not supported in GGUF"),
    (re.compile(r".*\.(qweight|qzeros|g_idx|weight_format|absmax|quant_map|weight_packed)"), "is of quantised weights"),
)
"""Tensors that some layouts hold and none here takes."""

ALIKE = 0.5
"""How much of two names must be the same for the one to be taken for the other."""


def diagnose(
    tensor: str, names: Collection[str], shape: Callable[[str], torch.Size], expected: Iterable[str], plan: Plan
) -> str | None:
    """One sentence on why `tensor`, one of a file's names or one that it lacks, is not as the plan has it; None when
    nothing but that can be said. expected: every name that such a file may have, in every spelling.
    """
    adapter = [name for name in names if ADAPTERS.search(name)]
    if adapter:
        return f"tensor {named(adapter[0])} is an adapter's, one of {len(adapter)} among {len(names)}: {MERGE}"
    return _wrapped(names, frozenset(expected)) or _foreign(tensor) or _renamed(tensor, names, shape, plan)


def _wrapped(names: Collection[str], expected: frozenset[str]) -> str | None:
    """What stands before the names that are expected, or between their parts, in half of the names or more."""
    extras = Counter(extra for name in names if (extra := _extra(name, expected)))
    if not extras:
        return None
    (extra, count), *_ = extras.most_common(1)
    if 2 * count < len(names):
        return None
    who = "every name" if count == len(names) else f"{count} of {len(names)} names"
    prefix, inner = extra
    has = f"begin with {named(prefix)}" if prefix else f"hold {named(inner[0] + '.')}"
    has = has.replace(" ", "s ", 1) if count == len(names) else has
    words = [*(match[1] for match in _WORDS.finditer(prefix)), *inner]
    by = [WRAPPERS[word] for word in dict.fromkeys(words)]
    left = f", which {' and '.join(left for left, _ in by)} left there" if by else ""
    todo = f"{by[-1][1]}, or take it off the names" if by else "take it off the names, or save the part alone"
    return f"{who} {has}{left}: {todo}"


def _extra(name: str, expected: frozenset[str]) -> tuple[str, tuple[str, ...]] | None:
    """What a name has before an expected one, and the wrappers' words between its parts; None where it has neither."""
    for start in (0, *(dot.end() for dot in re.finditer(r"\.", name))):
        rest = name[start:]
        if rest in expected:
            return (name[:start], ()) if start else None
        inner = tuple(match[1] for match in _WORDS.finditer(rest))
        if inner and not _WORDS.match(rest) and _WORDS.sub("", rest) in expected:
            return name[:start], inner
    return None


def _foreign(tensor: str) -> str | None:
    for pattern, what in FOREIGN:
        if pattern.fullmatch(tensor):
            return f"tensor {named(tensor)} {what}: take or make a checkpoint without, as the HF folder in bfloat16"
    return None


def _renamed(tensor: str, names: Collection[str], shape: Callable[[str], torch.Size], plan: Plan) -> str | None:
    """The missing tensor that a surplus one resembles, of one shape with it."""
    lacking = plan.missing(names)
    if tensor not in names or not lacking:
        return None
    best = _most_alike(tensor, [name for name in lacking if plan.sources[name].shape == shape(tensor)])
    if best is None:
        return None
    others = f", and {len(lacking) - 1} more are missing" if len(lacking) > 1 else ""
    what = f"tensor {named(tensor)} is unexpected, no rule takes it, and {named(best)} of the same shape is missing"
    return f"{what}: if it is that one, rename it{others}"


def _most_alike(name: str, others: Sequence[str]) -> str | None:
    """Of those with the same numbers in them, where there are some, the one that has most in common."""
    numbers = re.findall(r"\d+", name)
    others = [other for other in others if re.findall(r"\d+", other) == numbers] or others
    matcher = SequenceMatcher(b=name[:200], autojunk=False)
    scored: list[tuple[float, str]] = []
    for other in others[:1000]:
        matcher.set_seq1(other)
        scored.append((matcher.ratio(), other))
    score, best = max(scored, default=(0.0, None))
    return best if score >= ALIKE else None
