"""R1, "BertLayer" to "DeepseekV3Layer": the layers of transformers' models."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from parity_tests.facts import formulas as seed
from parity_tests.facts.mixing import given, mixers
from parity_tests.facts.moe import mixtral_moe
from parity_tests.facts.record import Fact, default, defaults, gives
from parity_tests.facts.subjects import (
    biases,
    close,
    filled,
    has,
    ids,
    internal,
    model,
    moved,
    published,
    values,
    watch,
)

# --- BERT ---


def bert_in_torch() -> bool:
    """A BertLayer's weights in nn.TransformerEncoderLayer(norm_first=False), with exact GELU and eps 1e-12."""
    (seen,) = watch(model("Bert"), "encoder.layer.0", input_ids=ids(5))
    theirs = seen.module
    layer = nn.TransformerEncoderLayer(24, 4, 40, activation="gelu", layer_norm_eps=1e-12, batch_first=True).double().eval()
    a = theirs.attention.self
    state = {
        "self_attn.in_proj_weight": torch.cat([a.query.weight, a.key.weight, a.value.weight]),
        "self_attn.in_proj_bias": torch.cat([a.query.bias, a.key.bias, a.value.bias]),
    }
    for mine, part in {
        "self_attn.out_proj": theirs.attention.output.dense,
        "linear1": theirs.intermediate.dense,
        "linear2": theirs.output.dense,
        "norm1": theirs.attention.output.LayerNorm,
        "norm2": theirs.output.LayerNorm,
    }.items():
        state |= {f"{mine}.weight": part.weight, f"{mine}.bias": part.bias}
    layer.load_state_dict(state)
    with torch.no_grad():
        return close(seen.y, layer(seen.x))


def bert_decoder() -> bool:
    net = model("Bert", is_decoder=True)
    causal = moved(lambda x: net(input_ids=x).last_hidden_state, ids(5), 3)
    return causal == [False] * 3 + [True] * 2 and all(
        moved(lambda x: model("Bert")(input_ids=x).last_hidden_state, ids(5), 3)
    )


def bert_outputs() -> bool:
    """dense, residual and LayerNorm in one module, behind the attention and behind the FFN."""
    attention, first, inner, last = watch(
        model("Bert"),
        "encoder.layer.0.attention",
        "encoder.layer.0.attention.output",
        "encoder.layer.0.intermediate",
        "encoder.layer.0.output",
        input_ids=ids(5),
    )
    z = seed.layer_norm(first.module.dense(first.x) + attention.x, first.module.LayerNorm)
    y = seed.layer_norm(last.module.dense(inner.y) + z, last.module.LayerNorm)
    return close(first.y, z) and close(last.y, y)


def bert_intermediate() -> bool:
    (seen,) = watch(model("Bert"), "encoder.layer.0.intermediate", input_ids=ids(5))
    return close(seen.y, F.gelu(seen.module.dense(seen.x)))


BERT = "R1, BertLayer"

BERT_FACTS = (
    Fact(
        id="bert-layer-is-torchs",
        place=BERT,
        quote="结构与 PyTorch TransformerEncoderLayer(norm_first=False) 相同,即 Post-LN",
        says="A BertLayer's weights in TransformerEncoderLayer(norm_first=False) give its numbers",
        check=bert_in_torch,
    ),
    Fact(
        id="bert-attention-parts",
        place=BERT,
        quote="BertAttention = BertSelfAttention + BertSelfOutput",
        says="BertAttention is BertSelfAttention and BertSelfOutput",
        check=lambda: all(
            isinstance(part, internal("Bert", name))
            for a in (model("Bert").encoder.layer[0].attention,)
            for part, name in ((a.self, "BertSelfAttention"), (a.output, "BertSelfOutput"))
        ),
    ),
    Fact(
        id="bert-is-decoder",
        place=BERT,
        quote="MHA 没有 CausalMask,只有 PaddingMask,所以是双向注意力;is_decoder=True 时才使用因果掩码",
        says="BERT attends both ways, and causally only with is_decoder=True",
        check=bert_decoder,
    ),
    Fact(
        id="bert-output-modules",
        place=BERT,
        quote="分别放在 BertSelfOutput.dense 和 BertOutput.dense 中,与残差相加、LayerNorm 一起完成",
        says="BertSelfOutput and BertOutput hold a LinearOut, add the residual and norm",
        check=bert_outputs,
    ),
    Fact(
        id="bert-intermediate",
        place=BERT,
        quote="BertIntermediate(Linear + GELU)+ BertOutput(Linear)",
        says="BertIntermediate is Linear + GELU",
        check=bert_intermediate,
    ),
    Fact(
        id="bert-base",
        place=BERT,
        quote="BERT-base 为 d_model=768、head=12、d_ff=3072",
        says="BERT-base, the default, has d_model 768, 12 heads, d_ff 3072",
        check=defaults("Bert", hidden_size=768, num_attention_heads=12, intermediate_size=3072),
    ),
)


# --- GPT-2 ---


def gpt2_attention() -> bool:
    """c_attn, split into Q, K and V in this order; causal MHA; c_proj."""
    (seen,) = watch(model("GPT2"), "h.0.attn", input_ids=ids(5))
    a = seen.module
    q, k, v = (seed.heads(y, 4) for y in (seen.x @ a.c_attn.weight + a.c_attn.bias).chunk(3, -1))
    y = seed.joined(seed.attention(q, k, v, seed.causal(5)))
    return close(seen.y, y @ a.c_proj.weight + a.c_proj.bias)


def resid_dropout() -> bool:
    """In training with only this dropout on: some outputs of attention are 0, the others doubled."""
    net = model("GPT2", resid_pdrop=0.5, attn_pdrop=0.0, embd_pdrop=0.0)
    (whole,) = watch(net, "h.0.attn", input_ids=ids(5))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        (dropped,) = watch(net.train(), "h.0.attn", input_ids=ids(5))
    assert 0 < (dropped.y == 0).sum() < dropped.y.numel(), "nothing was dropped"
    return close(dropped.y, torch.where(dropped.y == 0, 0, 2 * whole.y))


def conv1d() -> bool:
    layer = filled(internal("GPT2", "Conv1D")(5, 3))  # 3 in, 5 out
    x = values("x", 2, 3)
    assert layer.weight.shape == (3, 5), f"its weight is {tuple(layer.weight.shape)}"
    return close(layer(x), F.linear(x, layer.weight.T, layer.bias))


GPT2 = "R1, GPT2Layer"

GPT2_FACTS = (
    Fact(
        id="gpt2-pre-ln",
        place=GPT2,
        quote="z = x + MHA(LayerNorm(x)) y = z + FFN(LayerNorm(z))",
        says="GPT2Block is pre-LN: x + MHA(LayerNorm(x)), z + FFN(LayerNorm(z))",
        check=lambda: isinstance(model("GPT2").h[0], internal("GPT2", "GPT2Block"))
        and isinstance(model("GPT2").h[0].ln_1, nn.LayerNorm)
        and mixers("GPT2"),
    ),
    Fact(
        id="gpt2-resid-dropout",
        place=GPT2,
        quote="MHA 的 LinearOut 之后还有一个 resid_dropout,即 Dropout(LinearOut(...))",
        says="Behind the attention's LinearOut stands resid_dropout",
        check=resid_dropout,
    ),
    Fact(
        id="gpt2-c-attn",
        place=GPT2,
        quote="c_attn 一次性算出 QKV 再 split",
        says="c_attn makes Q, K and V in one, in this order",
        check=gpt2_attention,
    ),
    Fact(
        id="conv1d",
        place=GPT2,
        quote="Conv1D,本质是权重转置存储的 Linear(weight 形状为 (in, out))",
        says="GPT-2's Linears are Conv1D: a Linear whose weight is stored as (in, out)",
        check=conv1d,
    ),
    Fact(
        id="gpt2-mlp",
        place=GPT2,
        quote="FFN 为 GPT2MLP,激活函数为 gelu_new,d_ff=4×d_model",
        says="Its FFN is GPT2MLP with gelu_new, and 4 d_model wide unless n_inner says otherwise",
        check=lambda: default("GPT2", "n_inner") is None
        and default("GPT2", "activation_function") == "gelu_new"
        and [model("GPT2", n_inner=n).h[0].mlp.c_fc.weight.shape[1] for n in (None, 40)] == [4 * 24, 40],
    ),
)


# --- Llama and its relatives ---


def parameters(family: str, **changes: Any) -> set[str]:
    """Names of the parameters of a layer of its kind, the last."""
    return {name for name, _ in model(family, **changes).layers[-1].named_parameters()}


def llama_norms() -> bool:
    layer = model("Llama").layers[0]
    return all(type(getattr(layer, f"{n}_layernorm")).__name__ == "LlamaRMSNorm" for n in ("input", "post_attention"))


def same_layer(family: str) -> bool:
    """x + attention(RMSNorm(x)), then z + FFN(RMSNorm(z)), in layer 1."""
    net = model(family)
    path = "mlp" if hasattr(net.layers[1], "mlp") else "block_sparse_moe"
    names = ("", ".input_layernorm", ".self_attn", ".post_attention_layernorm", f".{path}")
    layer, norm, token, other, channel = watch(net, *(f"layers.1{n}" for n in names), input_ids=ids(5))
    first = seed.rms_norm(layer.x, norm.module.weight, norm.module.variance_epsilon)
    z = layer.x + token.y
    second = seed.rms_norm(z, other.module.weight, other.module.variance_epsilon)
    fed = close(given(token), first) and close(channel.x.flatten(0, -2), second.flatten(0, -2))
    return fed and close(layer.y, z + channel.y)


def qwen3_without_norm() -> bool:
    """Its parameters are Llama's and two norms; and where those norm nothing away, the window is all that is new."""
    return parameters("Qwen3") - parameters("Llama") == {"self_attn.q_norm.weight", "self_attn.k_norm.weight"} and not (
        parameters("Llama") - parameters("Qwen3")
    )


def mixtral_but_for_ffn() -> bool:
    def outside(family: str) -> set[str]:
        return {n for n in parameters(family) if not n.startswith(("mlp.", "block_sparse_moe."))}

    return outside("Mixtral") == outside("Llama") and parameters("Mixtral") != parameters("Llama")


def dense_layers() -> list[str]:
    """The class of the FFN in each of five layers at the default size."""
    layers = published("DeepseekV3", num_hidden_layers=5).layers
    return [type(layer.mlp).__name__ for layer in layers]


LLAMA_FACTS = (
    Fact(
        id="llama-layer",
        place="R1, LlamaLayer · R2, 3.3 · R2, 4 · R2, 4.3",
        quote="z = x + LlamaAttention(RMSNorm(x)) y = z + GatedFFN(RMSNorm(z))",
        says="LlamaDecoderLayer is x + Attention(RMSNorm(x)), then z + GatedFFN(RMSNorm(z))",
        check=lambda: same_layer("Llama"),
    ),
    Fact(
        id="llama-norm-names",
        place="R1, LlamaLayer",
        quote="两个 RMSNorm 分别为 input_layernorm 和 post_attention_layernorm",
        says="The two RMSNorms are input_layernorm and post_attention_layernorm",
        check=llama_norms,
    ),
    Fact(
        id="llama-plain",
        place="R1, LlamaLayer · R2, 4.1",
        quote="无 bias、无 Dropout",
        says="The layer has no bias and no dropout",
        check=lambda: not biases(model("Llama").layers[0]) and not has(model("Llama").layers[0], nn.Dropout),
    ),
    Fact(
        id="qwen3-layer",
        place="R1, Qwen3Layer",
        quote="与 LlamaLayer 相同,只是 attention 加了 QK-Norm 和可选的滑动窗口",
        says="Qwen3's layer is Llama's, with q_norm and k_norm added",
        check=lambda: same_layer("Qwen3") and qwen3_without_norm(),
    ),
    Fact(
        id="mixtral-layer",
        place="R1, MixtralLayer",
        quote="把 LlamaLayer 的 GatedFFN 换成 MoE,其他不变",
        says="Mixtral's layer is Llama's with the GatedFFN replaced by MoE, and nothing else changed",
        check=lambda: same_layer("Mixtral") and mixtral_but_for_ffn() and mixtral_moe(),
    ),
    Fact(
        id="deepseek-layer",
        place="R1, DeepseekV3Layer",
        quote="z = x + MLA(RMSNorm(x)) y = z + DeepSeekMoE(RMSNorm(z))",
        says="DeepseekV3DecoderLayer is x + MLA(RMSNorm(x)), then z + DeepSeekMoE(RMSNorm(z))",
        check=lambda: same_layer("DeepseekV3"),
    ),
    Fact(
        id="deepseek-first-dense",
        place="R1, DeepseekV3Layer",
        quote="first_k_dense_replace=3:前 3 层用 dense FFN,之后的层用 DeepSeekMoE",
        says="first_k_dense_replace is 3: three layers with a dense FFN, then DeepSeekMoE",
        check=lambda: default("DeepseekV3", "first_k_dense_replace") == 3
        and dense_layers() == ["DeepseekV3MLP"] * 3 + ["DeepseekV3MoE"] * 2,
    ),
    Fact(
        id="deepseek-dense-width",
        place="R1, DeepseekV3Layer",
        quote="layer_idx < 3 时为 GatedFFN(d_ff=18432)",
        says="The dense FFN of the first layers is 18432 wide",
        check=gives(18432, lambda: published("DeepseekV3", num_hidden_layers=1).layers[0].mlp.up_proj.out_features),
    ),
)

FACTS = (*BERT_FACTS, *GPT2_FACTS, *LLAMA_FACTS)
