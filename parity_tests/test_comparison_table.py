"""The table that closes R1 is what the reference is made of."""


from parity_tests.harness.comparison import table

SEED = """
Transformer | LayerNorm | Post | Sinusoidal 绝对 | MHA           | FFN            | ReLU
BERT        | LayerNorm | Post | 可学习绝对      | MHA(双向)     | FFN            | GELU
GPT-2       | LayerNorm | Pre  | 可学习绝对      | MHA           | FFN            | GELU (tanh)
Llama       | RMSNorm   | Pre  | RoPE            | MHA / GQA     | GatedFFN       | SiLU
Qwen3       | RMSNorm   | Pre  | RoPE            | GQA + QK-Norm | GatedFFN / MoE | SiLU
Mixtral     | RMSNorm   | Pre  | RoPE            | GQA           | MoE            | SiLU
DeepSeek-V3 | RMSNorm   | Pre  | 解耦 RoPE       | MLA           | DeepSeekMoE    | SiLU
"""


def test_the_table_is_the_seeds() -> None:
    seed = [tuple(cell.strip() for cell in line.split("|")) for line in SEED.strip().splitlines()]
    assert table() == seed
