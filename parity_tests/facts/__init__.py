"""The facts that the seeds state about torch and transformers, one assertion each (row C1). R1 is the seed "Attention 及各种
变体", R2 the seed "Transformer 架构详解:以 LLaMA 为例".
"""

from parity_tests.facts import attention, ffn, layers, llama_notes, models, norm_position
from parity_tests.facts.record import Fact

FACTS: tuple[Fact, ...] = tuple(
    fact for chapter in (attention, ffn, norm_position, layers, models, llama_notes) for fact in chapter.FACTS
)
