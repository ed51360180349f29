"""The facts are judged as they should be: a statement that stops holding, or holds again, is told; and faults are found."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from parity_tests.facts import FACTS, formulas, table
from parity_tests.facts.record import Changed, Check, Fact, gives, judge
from parity_tests.facts.subjects import internal, internals
from parity_tests.harness.hf import Absent

BY_ID = {fact.id: fact for fact in FACTS}


def yes() -> bool:
    return True


def no() -> bool:
    return False


def breaks() -> bool:
    raise TypeError("forward() got an unexpected argument")


def lacking() -> bool:
    raise Absent("this transformers has no such thing")


def of(check: Check, changed: Changed | None = None) -> Fact:
    return Fact(id="one", place="R1, MHA", quote="…", says="A statement", check=check, changed=changed)


NEVER = {"now": "something else is so"}
JUDGED: dict[str, tuple[Fact, str]] = {
    "holds": (of(yes), "holds"),
    "stops-holding": (of(no), "contradicted"),
    "another-value": (of(gives(1, lambda: 2)), "contradicted"),
    "check-breaks": (of(breaks), "contradicted"),
    "lacking": (of(lacking), "not here"),
    "never-held": (of(no, Changed(check=yes, **NEVER)), "never held"),
    "changed": (of(no, Changed(check=yes, since="4.0", **NEVER)), "changed"),
    "not-yet": (of(no, Changed(check=yes, until="99.0", **NEVER)), "not yet"),
    "holds-again": (of(yes, Changed(check=yes, **NEVER)), "holds again"),
    "fails-otherwise": (of(no, Changed(check=no, **NEVER)), "contradicted"),
    "breaks-though-known": (of(breaks, Changed(check=yes, **NEVER)), "contradicted"),
    "changes-later": (of(yes, Changed(check=no, since="99.0", **NEVER)), "holds"),
    "changed-before-and-after": (of(no, Changed(check=yes, until="4.0", **NEVER)), "contradicted"),
    "package-lacking": (of(no, Changed(check=yes, package="no-such-package", **NEVER)), "not here"),
}


@pytest.mark.parametrize("name", JUDGED)
def test_judged(name: str) -> None:
    fact, word = JUDGED[name]
    verdict = judge(fact)
    assert verdict.word == word
    assert verdict.wrong == (word in ("contradicted", "holds again"))


def test_what_is_so_instead_is_told() -> None:
    assert judge(of(gives(1, lambda: 2))).note == "it is 2"


@pytest.mark.parametrize(("check", "code"), [(yes, 0), (no, 1), (lacking, 0)])
def test_exit_code(monkeypatch: pytest.MonkeyPatch, check: Check, code: int) -> None:
    monkeypatch.setattr(table, "FACTS", (of(check),))
    assert table.main() == code


def test_table_fits_a_hundred_columns() -> None:
    printed = io.StringIO()
    table.show([judge(fact) for fact, _ in JUDGED.values()], Console(width=table.WIDTH, file=printed))
    lines = printed.getvalue().splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[-1] == "14 statements: 2 hold, 1 changed, 1 not yet, 1 never held, 2 not here, 6 contradicted, 1 holds again"


def test_ids_are_one_of_a_kind() -> None:
    assert len(BY_ID) == len(FACTS) > 100


# --- faults in torch and transformers ---


def repeated_whole(x: Tensor, n: int) -> Tensor:
    return x.repeat(1, n, 1, 1)


def wrong_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([second, -first], -1)


def eps_outside(self: Any, x: Tensor) -> Tensor:
    return self.weight * x / (x.square().mean(-1, keepdim=True).sqrt() + self.variance_epsilon)


def gate_for_up(self: Any, x: Tensor) -> Tensor:
    return self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x))


def last_token(self: Any, x: Tensor) -> Tensor:
    return torch.tanh(self.dense(x[:, -1]))


def not_renormalised(self: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logits = F.linear(x.reshape(-1, self.hidden_dim), self.weight)
    weight, choice = logits.softmax(-1).topk(self.top_k)
    return logits, weight, choice


def unscaled(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
    return (q @ k.mT).softmax(-1) @ v


def unmasked(size: int, **_: Any) -> Tensor:
    return torch.zeros(size, size)


PLANTED: dict[str, tuple[Callable[[], Any], str, Any]] = {
    "repeat-kv": (lambda: internals("Llama"), "repeat_kv", repeated_whole),
    "rotate-half": (lambda: internals("Llama"), "rotate_half", wrong_half),
    "rope-halves": (lambda: internals("Llama"), "rotate_half", formulas.rotate_every_two),
    "rms-norm-formula": (lambda: internals("Llama").LlamaRMSNorm, "forward", eps_outside),
    "gated-formula": (lambda: internals("Llama").LlamaMLP, "forward", gate_for_up),
    "bert-pooler": (lambda: internals("Bert").BertPooler, "forward", last_token),
    "moe-formula": (lambda: internal("Mixtral", "MixtralTopKRouter"), "forward", not_renormalised),
    "sdpa-scale": (lambda: F, "scaled_dot_product_attention", unscaled),
    "causal-mask": (lambda: nn.Transformer, "generate_square_subsequent_mask", staticmethod(unmasked)),
    "decoder-causal-by-self-attention": (lambda: nn.Transformer, "generate_square_subsequent_mask", staticmethod(unmasked)),
}


@pytest.mark.parametrize("fact", PLANTED)
def test_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, fact: str) -> None:
    where, name, wrong = PLANTED[fact]
    assert judge(BY_ID[fact]).word == "holds"
    try:
        owner = where()
    except Absent as absent:
        pytest.skip(str(absent))
    monkeypatch.setattr(owner, name, wrong)
    assert judge(BY_ID[fact]).word == "contradicted"
