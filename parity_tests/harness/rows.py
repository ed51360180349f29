"""What the seeds describe, row by row, and the tests that show it. Imports nothing that takes long."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

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
