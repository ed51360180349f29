"""R1, "总结对比": the table that compares the models, a fact a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import nn

from parity_tests.facts.ffn import gpt2_mlp, llama_mlp, torch_ff_block
from parity_tests.facts.latent_attention import mla_expanded
from parity_tests.facts.layers import bert_in_torch, gpt2_attention, same_layer
from parity_tests.facts.llama_attention import llama_like
from parity_tests.facts.mixing import mixers
from parity_tests.facts.models import small_transformer
from parity_tests.facts.moe import mixtral_moe, tokens_of_deepseek_apart
from parity_tests.facts.record import Changed, Fact, default
from parity_tests.facts.subjects import ids, model, moved
from parity_tests.facts.torch_layers import encoder_layer


def norm_classes(net: nn.Module) -> set[str]:
    """LayerNorm, RMSNorm or both: what norms the residual stream (q_norm, k_norm and latents' norms apart)."""
    inner = ("q_norm", "k_norm", "q_a_layernorm", "kv_a_layernorm")
    names = [
        type(m).__name__ for n, m in net.named_modules() if "Norm" in type(m).__name__ and n.split(".")[-1] not in inner
    ]
    return {"RMSNorm" if name.endswith("RMSNorm") else name for name in names}


def llama_row(family: str, heads_kv: int, ffn: str, *computed: Callable[[], bool]) -> Callable[[], bool]:
    """RMSNorm, pre, RoPE, SiLU, and the FFN's class; and that attention and network compute what the seed writes."""

    def check() -> bool:
        net = model(family)
        block = net.layers[-1].mlp if hasattr(net.layers[-1], "mlp") else net.layers[-1].block_sparse_moe
        found = (norm_classes(net), has_rope(net), net.config.hidden_act, type(block).__name__, net.config.num_key_value_heads)
        wanted = ({"RMSNorm"}, True, "silu", ffn, heads_kv)
        assert found == wanted, f"it is {found}"
        return same_layer(family) and all(computes() for computes in computed)

    return check


def has_rope(net: Any) -> bool:
    """A rotary table in the model, and no table of positions."""
    tables = [n for n, m in net.named_modules() if isinstance(m, nn.Embedding) and "embed_tokens" not in n]
    return hasattr(net, "rotary_emb") and not tables


def bert_row() -> bool:
    net = model("Bert")
    assert isinstance(net.embeddings.position_embeddings, nn.Embedding)
    both_ways = all(moved(lambda x: net(input_ids=x).last_hidden_state, ids(5), 4))
    return norm_classes(net) == {"LayerNorm"} and both_ways and default("Bert", "hidden_act") == "gelu" and bert_in_torch()


def gpt2_row() -> bool:
    net = model("GPT2")
    assert isinstance(net.wpe, nn.Embedding)
    assert norm_classes(net) == {"LayerNorm"}
    assert default("GPT2", "activation_function") == "gelu_new"
    return mixers("GPT2") and gpt2_attention() and gpt2_mlp()


def transformer_row() -> bool:
    net = small_transformer()
    norms = {type(m).__name__ for m in net.modules() if "Norm" in type(m).__name__}
    layer = net.encoder.layers[0]
    attends = isinstance(layer.self_attn, nn.MultiheadAttention)
    assert norms == {"LayerNorm"}
    assert not layer.norm_first
    assert attends
    assert layer.activation is F.relu
    return encoder_layer(norm_first=False) and torch_ff_block()


def qwen3_moe() -> bool:
    net = model("Qwen3Moe")
    assert hasattr(net.layers[0].self_attn, "q_norm"), "it has no QK-norm"
    assert norm_classes(net) == {"RMSNorm"}
    assert type(net.layers[0].mlp).__name__ == "Qwen3MoeSparseMoeBlock"
    return same_layer("Qwen3Moe") and llama_like("Qwen3Moe", norm=True)


TABLE = "R1, 总结对比"

TABLE_FACTS = (
    Fact(
        id="table-transformer",
        place=TABLE,
        quote="TransformerLayerNormPostSinusoidal 绝对MHAFFNReLU",
        says="nn.Transformer: LayerNorm, post, MHA, FFN, ReLU",
        check=transformer_row,
    ),
    Fact(
        id="table-bert",
        place=TABLE,
        quote="BERTLayerNormPost可学习绝对MHA(双向)FFNGELU",
        says="BERT: LayerNorm, learned positions, MHA both ways, GELU",
        check=bert_row,
    ),
    Fact(
        id="table-gpt2",
        place=TABLE,
        quote="GPT-2LayerNormPre可学习绝对MHAFFNGELU (tanh)",
        says="GPT-2: LayerNorm, pre, learned positions, MHA, FFN, tanh GELU",
        check=gpt2_row,
    ),
    Fact(
        id="table-llama",
        place=TABLE + " · R2, 3.3",
        quote="LlamaRMSNormPreRoPEMHA / GQAGatedFFNSiLU",
        says="Llama: RMSNorm, pre, RoPE, MHA or GQA, GatedFFN, SiLU",
        check=llama_row("Llama", 2, "LlamaMLP", lambda: llama_like("Llama"), llama_mlp),
    ),
    Fact(
        id="table-qwen3",
        place=TABLE,
        quote="Qwen3RMSNormPreRoPEGQA + QK-NormGatedFFN / MoESiLU",
        says="Qwen3: RMSNorm, pre, RoPE, GQA, GatedFFN, SiLU",
        check=llama_row("Qwen3", 2, "Qwen3MLP", lambda: llama_like("Qwen3", norm=True), lambda: llama_mlp("Qwen3")),
    ),
    Fact(
        id="table-qwen3-moe",
        place=TABLE,
        quote="Qwen3RMSNormPreRoPEGQA + QK-NormGatedFFN / MoESiLU",
        says="Qwen3 with MoE: QK-norm, and a MoE block for the GatedFFN",
        check=qwen3_moe,
    ),
    Fact(
        id="qwen3-gqa",
        place=TABLE,
        quote="GQA + QK-Norm",
        says="Qwen3 is GQA in HF's default configuration",
        check=lambda: default("Qwen3", "num_key_value_heads") < default("Qwen3", "num_attention_heads"),
        changed=Changed(
            now="HF's default is MHA, 32 heads of both kinds; the published models have fewer KV heads",
            check=lambda: default("Qwen3", "num_key_value_heads") == default("Qwen3", "num_attention_heads") == 32,
        ),
    ),
    Fact(
        id="table-mixtral",
        place=TABLE,
        quote="MixtralRMSNormPreRoPEGQAMoESiLU",
        says="Mixtral: RMSNorm, pre, RoPE, GQA, MoE, SiLU",
        check=llama_row("Mixtral", 2, "MixtralSparseMoeBlock", lambda: llama_like("Mixtral"), mixtral_moe),
    ),
    Fact(
        id="table-deepseek",
        place=TABLE,
        quote="DeepSeek-V3RMSNormPre解耦 RoPEMLADeepSeekMoESiLU",
        says="DeepSeek-V3: RMSNorm, pre, RoPE, MLA, DeepSeekMoE, SiLU",
        check=llama_row("DeepseekV3", 4, "DeepseekV3MoE", mla_expanded, tokens_of_deepseek_apart),
    ),
)

FACTS = (*TABLE_FACTS,)
