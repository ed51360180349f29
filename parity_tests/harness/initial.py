"""Freshly initialised models of transformers, by the reference's names, and whether they follow their laws."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from parity_tests.harness import hf
from parity_tests.harness.case import Case
from parity_tests.harness.compare import Outcome, measured, refused
from parity_tests.harness.names import kind_of
from parity_tests.harness.points import raw_config_of
from parity_tests.harness.training import layout_of
from reference_impl.initialisation import Given, Law, Normal, Orthogonal, StepSizes, Uniform
from weight_mapping.config import parse_config

SEEDS = (1, 2)

ALPHA = 1e-6
"""How often one of all the kinds of parameters of a case would be taken for wrong, when all are right: shared evenly among the
checks, so the more there are the more is granted to each.
"""

SAID: dict[str, dict[str, Any]] = {
    "published": {},
    "otherwise": {
        "initializer_range": 0.05,
        "init_std": 0.07,
        "initializer_factor": 0.5,
        "layer_scale_init_value": 0.3,
        "time_step_min": 0.01,
        "time_step_max": 0.3,
        "time_step_floor": 0.02,
        "time_step_scale": 2.0,
        "rescale_prenorm_residual": True,
        "pad_token_id": 3,
    },
    "constant": {"time_step_init_scheme": "constant"},
}
"""Every field that the beginning reads, as it is published and otherwise."""

EXACT = 1e-5
"""Of what hangs on no seed, relative: what float32 makes of a formula, and of right angles."""


@dataclass(frozen=True)
class Fresh:
    """Of each seed, the parameters by name. apart: transformers' names of what the config ties, and what is not one there."""

    seeds: list[dict[str, Tensor]]
    apart: tuple[str, ...] = ()


def config_class(case: Case) -> Any:
    """transformers' config class of a case."""
    return transformers.CONFIG_MAPPING[str(raw_config_of(case)["model_type"])]


def fresh(case: Case, said: Mapping[str, Any]) -> Fresh:
    """transformers' model of a case's config with these keys besides, made anew. Errors: hf.Crashed."""
    raw = {**raw_config_of(case), **said}
    family, config = parse_config(raw_config_of(case), "hf")
    with torch.device("meta"):
        mine = family.model(config)
    found, apart = [], {}
    for seed in SEEDS:
        torch.manual_seed(seed)
        with hf.crashes():
            theirs = getattr(transformers, case.hf_class)(hf.config_from(config_class(case), raw))
        theirs.not_trained = [name for name, p in theirs.named_parameters() if not p.requires_grad]
        plan = layout_of(mine, theirs)
        names = {*plan.sources, *plan.copies}
        state = {name: x.detach() for name, x in theirs.state_dict().items() if name in names}
        for rule in plan.rules:
            others = [name for name in rule.sources if name in state] if rule.tied else []
            for name in others[1:]:
                if not torch.equal(state[name], state[others[0]]):
                    apart |= {others[0]: None, name: None}
                    del state[name]
        found.append(plan.forward(state))
    return Fresh(found, tuple(apart))


def judge(made: Fresh, stated: Mapping[str, Law]) -> dict[str, Outcome]:
    """How each kind of parameter came out, its worst check against what chance allows."""
    groups: dict[tuple[str, Law], list[Tensor]] = defaultdict(list)
    for parameters in made.seeds:
        for name, x in parameters.items():
            groups[kind_of(name), stated[name]].append(x.double())
    checks = [(kind, what, p) for (kind, law), each in groups.items() for what, p in _checks(law, each)]
    bar = -math.log10(ALPHA / len(checks))
    found: dict[str, Outcome] = {}
    for kind, what, p in checks:
        error = -math.log10(p) if p > 0 else math.inf
        wrong = error > bar
        if kind not in found or error > found[kind].error:
            odds = f", which happens once in {1 / p:.0e} times" if p > 0 else ""
            verdict, note = ("differs", f"{what} is not as stated{odds}") if wrong else ("same", "")
            found[kind] = Outcome(error, bar, False, verdict, note)
    return found


def drawn(made: Fresh, stated: Mapping[str, Law]) -> Outcome:
    """Whether each parameter that is random was drawn by itself, and once."""
    if made.apart:
        return refused(f"{' and '.join(made.apart)} are tied by the config, and each is drawn by itself")
    random = {name: x for name, x in made.seeds[0].items() if not isinstance(stated[name], Given)}
    for (a, x), (b, y) in combinations(random.items(), 2):
        if x.shape == y.shape and torch.equal(x, y):
            return refused(f"{a} and {b} are drawn as one, and the config does not tie them")
    return measured(0.0, 0.0)


def _checks(law: Law, each: list[Tensor]) -> Iterator[tuple[str, float]]:
    """What is looked at, and how likely it is to be as far off where the law holds: 0 or 1 where nothing is left to chance."""
    if isinstance(law, Given):
        value = torch.as_tensor(law.values, dtype=torch.float64)
        yield "its value", _sure((x - value).abs().max() <= EXACT * value.abs().max().clamp(min=1) for x in each)
    elif isinstance(law, Orthogonal):
        yield "the angle of its rows", _sure(_at_right_angles(x / law.gain) for x in each)
    elif isinstance(law, Normal):
        if law.zero_row is not None:
            yield "the row of padding", _sure(not x[law.zero_row].any() for x in each)
            each = [torch.cat([x[: law.zero_row], x[law.zero_row + 1 :]]) for x in each]
        u = torch.cat([x.flatten() for x in each]) / law.std
        yield "its mean", _two_sided(u.sum() / len(u) ** 0.5)
        yield "its deviation", _chi_squared(u.square().sum(), len(u))
    elif isinstance(law, Uniform):
        u = torch.cat([x.flatten() for x in each]) / law.bound
        yield "its bound", _sure([u.abs().max() <= 1 + EXACT])
        yield from _even(u)
    else:
        yield from _steps(law, F.softplus(torch.cat([x.flatten() for x in each])))


def _steps(law: StepSizes, steps: Tensor) -> Iterator[tuple[str, float]]:
    low, high = max(law.low, law.floor), law.high
    yield "its bounds", _sure([steps.min() >= low * (1 - EXACT), steps.max() <= high * (1 + EXACT)])
    free = steps[steps > low * (1 + EXACT)]
    share = math.log(low / law.low) / math.log(high / law.low)  # of those that the floor holds up
    if share:
        held_up, n = len(steps) - len(free), len(steps)
        yield "how many are at its floor", _two_sided((held_up - n * share) / math.sqrt(n * share * (1 - share)))
    yield from _even(2 * (free / low).log() / math.log(high / low) - 1)


def _even(u: Tensor) -> Iterator[tuple[str, float]]:
    """Of numbers that are spread evenly from -1 to 1, whose squares have mean 1/3 and variance 4/45."""
    yield "its mean", _two_sided(u.mean() * math.sqrt(3 * len(u)))
    yield "its deviation", _two_sided((u.square().mean() - 1 / 3) * math.sqrt(len(u) * 45 / 4))


def _at_right_angles(x: Tensor) -> bool:
    x = x if x.shape[0] <= x.shape[1] else x.mT
    return bool((x @ x.mT - torch.eye(len(x))).abs().max() <= EXACT)


def _sure(holds: Iterable[Any]) -> float:
    return float(all(map(bool, holds)))


def _two_sided(z: Any) -> float:
    """Of a standard normal variable."""
    return math.erfc(abs(float(z)) / math.sqrt(2))


def _chi_squared(total: Tensor, n: int) -> float:
    """Of a sum of squares of n such."""
    half, x = torch.tensor(n / 2, dtype=torch.float64), total / 2
    return min(1.0, 2 * float(torch.minimum(torch.special.gammainc(half, x), torch.special.gammaincc(half, x))))
