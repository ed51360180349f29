"""Both sides in training: losses, gradients carried through the mapping, a step of an optimizer, dropout."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import weight_mapping
from parity_tests.harness import hf, known, ours
from parity_tests.harness.batches import Batch
from parity_tests.harness.case import Case, batches_of, reads
from parity_tests.harness.compare import Outcome, measured, refused
from parity_tests.harness.memory import once
from parity_tests.harness.shapes import unchecked
from reference_impl.losses import IGNORED, language_model_loss
from weight_mapping.loading import family_of, parameters_of, plan_for
from weight_mapping.plan import Plan

GRADIENT_BAR = 1e-10
"""Of a difference, relative to the norm of all gradients: some of them are nought but noise."""

SETTINGS = {"lr": 1e-2, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1}
"""Of AdamW, none of them its default."""


@dataclass(frozen=True)
class Trained:
    """What one loss, its gradients and one step of AdamW gave on both sides."""

    loss: Tensor
    their_loss: Tensor
    trainable: Outcome
    gradients: Outcome
    step: Outcome


def sides(case: Case) -> tuple[Any, Any]:
    """The two models of a case, made anew, in float64 and with gradients on; the reference with what is known of this release
    applied.
    """
    model = weight_mapping.load(case.source, dtype=torch.float64, device=case.device)
    for departure in known.departures(case):
        departure.apply(model)
    theirs = hf.build(case.hf_class, case.source, "f64", case.backend, case.device)
    for name, parameter in theirs.named_parameters():
        parameter.requires_grad_(name not in hf.frozen(theirs))
    return model, theirs


def labels_of(case: Case, batch: Batch) -> Tensor:
    """What is to be predicted: the tokens themselves, but for padding, what only padding could predict, and every fifth."""
    given = reads(case)
    if batch.ids is None:
        return given.labels(batch)
    real = batch.keep["s"].clone()
    if given.causal and not given.source:
        real[:, 1:] &= batch.keep["s"][:, :-1]  # the token behind padding on the left
    real[:, ::5] = False
    return batch.inputs["ids"].masked_fill(~real, IGNORED)


def loss_of(case: Case, logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each label; of a decoder-only model, from the logits of the token before."""
    given = reads(case)
    if given.causal and not given.source:
        return language_model_loss(logits, labels)
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED)


def layout_of(model: nn.Module, theirs: nn.Module, *, buffers: bool = False) -> Plan:
    """The layout that transformers has in memory: that of hubs, or one with experts together."""
    family, config = family_of(model)
    names = set(theirs.state_dict()) if buffers else {name for name, _ in theirs.named_parameters()} - set(hf.frozen(theirs))
    for layout in ("transformers5", "hf"):
        if layout in family.tables:
            plan = plan_for(family, config, layout, buffers=buffers).spelled_as(names)
            if names <= {*plan.sources, *plan.copies, *plan.dropped(names)}:
                return plan
    raise AssertionError(f"no layout of {type(model).__name__} has all of {sorted(names)}")


def _carried(plan: Plan, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values of the reference's parameters under transformers' names, tied ones under each."""
    found = plan.backward(values)
    copies = {name: rule.sources[0] for rule in plan.rules if rule.tied for name in rule.sources[1:]}
    return found | {name: found[first] for name, first in copies.items()}


@once
def trained(case: Case) -> Trained:
    """One loss over two batches, and what follows from it."""
    model, theirs = sides(case)
    mine, other = [], []
    for batch in batches_of(case):
        if batch.name in ("plain", "padded"):
            labels = labels_of(case, batch)
            with unchecked():
                mine.append(loss_of(case, ours.read(model, batch.inputs), labels))
            output = hf.run(theirs, "f64", batch.inputs, gradients=True, labels=labels)
            other.append(loss_of(case, output.logits, labels) if output.loss is None else output.loss)
    loss, their_loss = torch.stack(mine).sum(), torch.stack(other).sum()
    loss.backward()
    their_loss.backward()
    plan = layout_of(model, theirs)
    trainable, gradients = _gradients(model, theirs, plan)
    return Trained(loss.detach(), their_loss.detach(), trainable, gradients, _step(model, theirs, plan))


def _gradients(model: nn.Module, theirs: nn.Module, plan: Plan) -> tuple[Outcome, Outcome]:
    """Whether the same parameters have gradients; and the largest difference of one, relative to the norm of all."""
    own = parameters_of(model, buffers=False)
    grads = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in own.items()}
    given = {name: torch.full_like(p, float(p.grad is not None)) for name, p in own.items()}
    mine, there = _carried(plan, grads), _carried(plan, given)
    norm, worst, trainable = _norm(grads.values()), (0.0, ""), measured(0.0, GRADIENT_BAR)
    for name, parameter in theirs.named_parameters():
        if parameter.requires_grad:
            has = parameter.grad is not None
            if name not in there and not has:
                continue  # the layout drops it, as what nothing reads
            if name not in there or bool(there[name].any()) != has:
                trainable = refused(f"{name} has {'a' if has else 'no'} gradient in transformers, and in the reference not so")
                continue
            other = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            worst = max(worst, (float((mine[name] - other).norm() / norm), name))
    return trainable, measured(worst[0], GRADIENT_BAR, worst[1])


def _step(model: nn.Module, theirs: nn.Module, plan: Plan) -> Outcome:
    """The same of the weights after one step of AdamW, relative to the norm of all weights."""
    for side in (model, theirs):
        torch.optim.AdamW([p for p in side.parameters() if p.requires_grad], **SETTINGS).step()
    own = {name: p.detach() for name, p in parameters_of(model, buffers=False).items()}
    mine, norm = _carried(plan, own), _norm(own.values())
    moved = [(name, p.detach()) for name, p in theirs.named_parameters() if p.requires_grad and name in mine]
    error, name = max((float((mine[name] - p).norm() / norm), name) for name, p in moved)
    return measured(error, GRADIENT_BAR, name)


def _norm(tensors: Iterable[Tensor]) -> Tensor:
    return torch.stack([x.norm() for x in tensors]).norm()


SEED = 7
"""Of the state of the RNG that either side begins to draw from."""


def their_dropout(case: Case, batch: Batch) -> Tensor:
    """transformers' logits with every dropout on."""
    theirs = hf.build(case.hf_class, case.source, "f64", case.backend, case.device).train()
    torch.manual_seed(SEED)
    return hf.run(theirs, "f64", batch.inputs).logits


def my_dropout(model: nn.Module, batch: Batch) -> Tensor:
    """The same of the reference, or of one that departs from it."""
    training = copy.deepcopy(model).train()
    torch.manual_seed(SEED)
    with torch.no_grad(), unchecked():
        return ours.read(training, batch.inputs)
