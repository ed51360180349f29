"""The other classes of a family: which there are, and both sides of one, with the reference's trunk and head."""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import weight_mapping
from parity_tests.families.siblings import HEAD_DROPOUT
from parity_tests.fixtures.values import bias, fill, linear
from parity_tests.harness import hf
from parity_tests.harness.batches import Batch
from parity_tests.harness.case import Case
from parity_tests.harness.flags import config_class
from parity_tests.harness.known import departures
from parity_tests.harness.record import Family, Fed, Sibling
from parity_tests.harness.shapes import unchecked

ABSTRACT = ("*PreTrainedModel", "*PretrainedModel", "Pretrained*Model")
"""What the others inherit from, and nobody runs."""

HEAD = (("*.bias", bias), ("*.weight", linear(2.0)))


def exported(family: Family) -> list[str]:
    """The names of the modules that the installed release exports for a family. Errors: hf.Absent."""
    config = config_class(family)
    module = importlib.import_module(config.__module__.replace(".configuration_", ".modeling_"))
    own = [name for name, x in vars(module).items() if isinstance(x, type) and issubclass(x, nn.Module)]
    own = [name for name in own if vars(module)[name].__module__ == module.__name__ and hf.has_class(name)]
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    tables = [table for name, table in vars(auto).items() if name.startswith("MODEL_") and name.endswith("_MAPPING_NAMES")]
    found = [table[config.model_type] for table in tables if config.model_type in table]
    listed = [name for entry in found for name in ([entry] if isinstance(entry, str) else entry)]
    return [name for name in dict.fromkeys([*own, *listed]) if not any(fnmatchcase(name, each) for each in ABSTRACT)]


def classes_of_variants(family: Family) -> set[str]:
    """Those that every other test compares."""
    return {name for config in family.variants.values() for name in config.get("architectures", [family.hf_class])}


def siblings_of(case: Case) -> list[str]:
    """The classes that are compared with this variant's weights."""
    first = next(iter(case.record.variants))
    found = [(name, each) for name, each in case.record.siblings.items() if isinstance(each, Sibling)]
    return [name for name, each in found if (each.variant or first) == case.variant]


@dataclass(frozen=True)
class Pair:
    """Both sides of a class. last: the reference's last layer."""

    sibling: Sibling
    model: Any
    head: nn.Module | None
    theirs: Any
    last: str

    def outputs(self, batch: Batch, fed: Fed) -> dict[str, Tensor]:
        """What the reference gives, by transformers' names."""
        root = self.model.get_submodule(self.sibling.part)
        names = [self.sibling.site.format(last=self.last), *self.sibling.also.values()]
        with unchecked(), reading(root, names) as seen:
            root(**{name: x.to(torch.float64) if x.is_floating_point() else x for name, x in fed.mine.items()})
            y = self.sibling.pick(seen[names[0]], batch, fed)
            out = y if self.head is None else self.head(y)
        return {**self.sibling.task.gives(out), **{name: seen[path] for name, path in self.sibling.also.items()}}

    def train(self) -> None:
        """Every dropout on, every gradient too."""
        for side in (self.model, self.theirs, *([self.head] if self.head is not None else [])):
            side.train()

    def heads(self) -> Iterator[tuple[str, Tensor]]:
        """The parameters of the head, by transformers' names."""
        for part, name in self.sibling.tensors.items():
            assert isinstance(self.head, nn.Module)
            for last, parameter in self.head.get_submodule(part).named_parameters():
                yield f"{name}.{last}", parameter


class reading:
    """Keep what modules return, by their paths, while the body runs."""

    def __init__(self, root: nn.Module, names: list[str]):
        self.seen: dict[str, Tensor] = {}
        self.handles = [root.get_submodule(name).register_forward_hook(self._keep(name)) for name in names]

    def _keep(self, name: str) -> Callable[..., None]:
        return lambda module, args, output: self.seen.update({name: output})

    def __enter__(self) -> dict[str, Tensor]:
        return self.seen

    def __exit__(self, *error: object) -> None:
        for handle in self.handles:
            handle.remove()


def build(case: Case, name: str, n_labels: int, last: str) -> Pair:
    """Both sides of a class, made anew from a variant's weights, in float64; the reference with what is known of this release
    applied. Errors: hf.Absent, hf.Crashed.
    """
    if not hf.has_class(name):
        raise hf.Absent(f"transformers {hf.VERSION} has no {name}")
    sibling = case.record.siblings[name]
    assert isinstance(sibling, Sibling)
    model = weight_mapping.load(case.source, dtype=torch.float64)
    for departure in departures(case):
        departure.apply(model)
    head = sibling.head
    if isinstance(head, str):
        head = model.get_submodule(head)
    elif head is not None:
        head = head(model.config, n_labels).double().eval()
    pair = Pair(sibling, model, head, None, last)
    shapes = {name: tuple(parameter.shape) for name, parameter in pair.heads()}
    tensors = fill(shapes, HEAD)
    with torch.no_grad():
        for own, parameter in pair.heads():
            parameter.copy_(tensors[own])
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), case, name, n_labels, tensors)
        theirs = hf.build(name, Path(folder), "f64", case.backend)
    return Pair(sibling, model, head, theirs, last)


def write(folder: Path, case: Case, name: str, n_labels: int, tensors: Mapping[str, Tensor]) -> None:
    """A checkpoint of this class: the variant's weights, under the prefix that the class has for a trunk, and the head's."""
    sibling: Any = case.record.siblings[name]
    config = json.loads((case.source / "config.json").read_text())
    more = {"architectures": [name], "num_labels": n_labels, "classifier_dropout": HEAD_DROPOUT}
    if config.get("pad_token_id") is None:
        more["pad_token_id"] = 5
    (folder / "config.json").write_text(json.dumps({**config, **more}))
    trunk = load_file(case.source / "model.safetensors")
    old, new = (getattr(transformers, each).base_model_prefix for each in (case.hf_class, name))
    renamed = {f"{new}.{key.removeprefix(f'{old}.')}" if key.startswith(f"{old}.") else key: x for key, x in trunk.items()}
    renamed |= {copy: trunk[first].clone() for copy, first in sibling.copies.items()}
    under = f"{sibling.under}." if sibling.under else ""
    save_file({**{under + key: x for key, x in renamed.items()}, **tensors}, folder / "model.safetensors", {"format": "pt"})


def run(theirs: Any, fed: Fed, labels: Mapping[str, Tensor] | None = None) -> Any:
    """transformers' forward under the lens; with labels also for the gradients."""
    given = {name: x.to(torch.float64) if x.is_floating_point() else x for name, x in fed.theirs.items()}
    hf.forget(theirs)
    return hf.call(theirs, "f64", {**given, **(labels or {})}, gradients=labels is not None)
