"""The facts that the seeds state about torch and transformers, one assertion each (items C1). R1 is the seed "Attention 及各种
变体", R2 the seed "Transformer 架构详解:以 LLaMA 为例".
"""

from parity_tests.facts import (
    attention,
    comparison,
    ffn,
    latent_attention,
    layers,
    llama_attention,
    llama_notes,
    mixing,
    models,
    moe,
    norm,
    position,
    rope,
    torch_layers,
    transformer_notes,
)
from parity_tests.facts.record import Fact

CHAPTERS = (
    *(attention, latent_attention, llama_attention, ffn, moe, norm, position, rope),
    *(mixing, torch_layers, layers, models, comparison, transformer_notes, llama_notes),
)
"""In the seeds' order."""

FACTS: tuple[Fact, ...] = tuple(fact for chapter in CHAPTERS for fact in chapter.FACTS)
