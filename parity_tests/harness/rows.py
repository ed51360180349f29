"""What the seeds describe, row by row, and the tests that show it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from parity_tests.harness.points import config_of
from parity_tests.harness.record import Family, kind_of

ROWS = {
    "A1": "MHA, self-attention",
    "A2": "CrossAttention",
    "A3": "MQA / GQA",
    "A4": "MLA, expanded",
    "A5": "MLA, absorbed",
    "A6": "LlamaAttention",
    "A7": "Qwen3Attention; Qwen2's biases",
    "F1": "FFN: ReLU, erf GELU, tanh GELU",
    "F2": "GatedFFN / SwiGLU",
    "F3": "MoE",
    "F4": "DeepSeekMoE",
    "N1": "LayerNorm, RMSNorm",
    "P1": "Sinusoidal PE, interleaved",
    "P2": "Sinusoidal PE, halves",
    "P3": "Learned PE",
    "P4": "RoPE, both pairings, and its scalings",
    "T1": "TokenMixer / ChannelMixer form",
    "T2": "MLP-Mixer",
    "T3": "FNet",
    "T4": "PoolFormer",
    "T5": "Linear attention / SSM: RWKV, Mamba",
    "T6": "RankMixer, TokenMixer-Large",
    "T7": "Depthwise-separable convolution",
    "L1": "TransformerEncoderLayer",
    "L2": "TransformerDecoderLayer",
    "L3": "BertLayer",
    "L4": "GPT2Layer",
    "L5": "LlamaLayer",
    "L6": "Qwen3Layer",
    "L7": "MixtralLayer",
    "L8": "DeepseekV3Layer",
    "M1": "Transformer (encoder-decoder)",
    "M2": "BertModel, pooler, MLM head",
    "M3": "GPT2Model and LM head",
    "M4": "LlamaModel and those built like it, and LM heads",
    "M5": "Marian, T5, BART",
    "M6": "Mini-LLaMA",
    "G1": "KV cache and generation",
    "C1": "The facts that the seeds state",
    "S1": "The comparison table",
}

Outcome = tuple[str, list[str]]
"""How a test ended, and its rows."""

ONLY_AT = {"L": ("layer",), "M": ("model", "generation")}
"""Rows of layers and of models are shown at their level; the others by every test of what they are about."""


def rows_of(item: pytest.Item) -> list[str]:
    """The rows that a test shows: by its markers, and by the record of the family and of the unit that it compares."""
    found = [row for marker in item.iter_markers("rows") for row in marker.args]
    unknown = [row for row in found if row not in ROWS]
    if unknown:
        raise pytest.UsageError(f"{item.nodeid} shows {', '.join(unknown)}, which are no rows of the seeds")
    level = item.get_closest_marker("level")
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    point, case = parameters.get("point"), parameters.get("case")
    case = point.case if point is not None else case
    if case is None:
        return found
    levels = (level.args[0],) if level else ()
    family = [row for row in case.record.rows if not levels or levels[0] in ONLY_AT.get(row[0], levels)]
    unit = unit_rows(case.record, config_of(case), point.kind) if point is not None else []
    cached = ["G1"] if levels and levels[0] in ("cache", "generation") else []
    return list(dict.fromkeys([*found, *family, *unit, *cached]))


def unit_rows(family: Family, config: Any, kind: str) -> list[str]:
    """The rows that a kind of site shows beside those of its family."""
    return [
        row
        for unit in family.units_of(config)
        if unit.rows and any(kind_of(unit.site_name(site)) == kind for site in unit.sites)
        for row in unit.rows
    ]


def _counted(outcomes: Iterable[Outcome]) -> Mapping[str, Counter[str]]:
    found: Mapping[str, Counter[str]] = defaultdict(Counter)
    for outcome, rows in outcomes:
        for row in rows:
            found[row][outcome] += 1
    return found


def all_shown(outcomes: Iterable[Outcome]) -> bool:
    """Whether every row has tests and none of them fails."""
    found = _counted(outcomes)
    return all(found[row]["passed"] and not found[row]["failed"] for row in ROWS)


def show(outcomes: Iterable[Outcome]) -> None:
    """Print row -> tests -> verdict."""
    found = _counted(outcomes)
    table = Table(title="Rows of the seeds", title_justify="left")
    for heading in ("row", "what", "tests", "verdict"):
        table.add_column(heading, justify="right" if heading == "tests" else "left")
    for row, title in ROWS.items():
        wrong, right = found[row]["failed"], found[row]["passed"]
        said = f"{wrong} fail" if wrong else "✓" if right else "no test shows it"
        table.add_row(row, title, str(right + wrong), Text(said, "green" if right and not wrong else "bold red"))
    Console().print(table)
