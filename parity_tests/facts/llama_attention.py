"""R1, "LlamaAttention" and "Qwen3Attention"."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from parity_tests.facts import formulas as seed
from parity_tests.facts.record import Fact, default, gives
from parity_tests.facts.subjects import biases, close, config, ids, internals, model, run, sizes, watch
from parity_tests.harness.hf import cache_of, cached


def rotated(seen: Any, norm: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys (both rotated; normed before where asked) and values of a Llama-like attention's input."""
    a, x = seen.module, seen.x
    q, k, v = (seed.heads(proj(x), n) for proj, n in ((a.q_proj, 4), (a.k_proj, 2), (a.v_proj, 2)))
    if norm:
        q = seed.rms_norm(q, a.q_norm.weight, a.q_norm.variance_epsilon)
        k = seed.rms_norm(k, a.k_norm.weight, a.k_norm.variance_epsilon)
    cos, sin = seen.kwargs["position_embeddings"]
    return seed.rope(q, cos, sin), seed.rope(k, cos, sin), v


def llama_like(family: str, norm: bool = False) -> bool:
    """RoPE, Repeat, softmax and LinearOut as the seed writes them."""
    (seen,) = watch(model(family), "layers.0.self_attn", input_ids=ids(6))
    q, k, v = rotated(seen, norm)
    y = seed.attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), seed.causal(6))
    return close(seen.y, seen.module.o_proj(seed.joined(y)))


def cached_before_repeat(family: str = "Llama", norm: bool = False) -> bool:
    """What is cached: keys that RoPE has turned and repeat_kv has not copied."""
    net = model(family)
    (seen,) = watch(net, "layers.0.self_attn", input_ids=ids(6))
    _, k, v = rotated(seen, norm)
    held = cached(cache_of(run(net, input_ids=ids(6), use_cache=True)), 0)
    return close(held[0], k) and close(held[1], v)  # pyright: ignore[reportOptionalSubscript]


def normed_scores_bounded() -> bool:
    """With unit weights |q| = |k| = sqrt(d_k), so no score exceeds sqrt(d_k), however large the input: Llama's do."""
    scores = {}
    for family in ("Qwen3", "Llama"):
        (seen,) = watch(model(family), "layers.0.self_attn", input_ids=ids(6))
        seen.kwargs |= {"hidden_states": seen.x * 100}
        seen.args = ()
        if family == "Qwen3":
            seen.module.q_norm.weight.fill_(1)
            seen.module.k_norm.weight.fill_(1)
        q, k, _ = rotated(seen, norm=family == "Qwen3")
        scores[family] = float((q @ k.repeat_interleave(2, 1).mT * q.shape[-1] ** -0.5).abs().max())
    assert scores["Llama"] > 100, "Llama's scores stay small, so that nothing is shown"
    return scores["Qwen3"] <= 8**0.5 + 1e-9


def qwen2_biases() -> bool:
    found = {name.split(".")[0] for name in biases(model("Qwen2").layers[0].self_attn)}
    assert found == {"q_proj", "k_proj", "v_proj"}, f"it is {sorted(found)}"
    return True


SLIDING = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}


def qwen3_window() -> bool:
    """Token 0 reaches all positions in layer 0, and three in layer 1: found from where attention weights are zero."""
    probs = run(model("Qwen3", **SLIDING), input_ids=ids(6), output_attentions=True).attentions
    seen = [(p > 1e-12).any(1)[0] for p in probs]
    apart = torch.arange(6)[:, None] - torch.arange(6)
    full, window = apart >= 0, (apart >= 0) & (apart < 3)
    assert torch.equal(seen[0], full), "layer 0 does not see everything before it"
    return all(torch.equal(each, window) for each in seen[1:])


LLAMA_FACTS = (
    Fact(
        id="llama-attention",
        place="R1, LlamaAttention",
        quote="即 GQA + RoPE,对应 q_proj / k_proj / v_proj / o_proj",
        says="LlamaAttention is GQA + RoPE, in q_proj, k_proj, v_proj and o_proj",
        check=lambda: llama_like("Llama"),
    ),
    Fact(
        id="llama-attention-bias",
        place="R1, LlamaAttention",
        quote="attention_bias=False:所有 Linear 都没有 bias",
        says="attention_bias is False, and no Linear of it has a bias",
        check=lambda: default("Llama", "attention_bias") is False and not biases(model("Llama").layers[0].self_attn),
    ),
    Fact(
        id="llama-attention-dropout",
        place="R1, LlamaAttention",
        quote="attention_dropout=0.0:没有 Dropout",
        says="attention_dropout is 0.0: training computes what evaluation does",
        check=lambda: default("Llama", "attention_dropout") == 0.0
        and close(*(run(m, input_ids=ids(6)).last_hidden_state for m in (model("Llama").train(), model("Llama")))),
    ),
    Fact(
        id="llama-order",
        place="R1, LlamaAttention",
        quote="先 RoPE,再写入 KV Cache(cache.update),再 repeat_kv",
        says="RoPE comes before the cache, and the cache before repeat_kv",
        check=cached_before_repeat,
    ),
)

QWEN3_FACTS = (
    Fact(
        id="qwen3-attention",
        place="R1, Qwen3Attention",
        quote="RoPE(RMSNorm(LinearQ(x)))",
        says="Qwen3Attention norms q and k, then rotates, then attends as Llama does",
        check=lambda: llama_like("Qwen3", norm=True),
    ),
    Fact(
        id="qwen3-qk-norm-axis",
        place="R1, Qwen3Attention",
        quote="q_norm / k_norm 是作用在每个头 d_k 维上的 RMSNorm",
        says="q_norm and k_norm are RMSNorms over the d_k of each head",
        check=gives(
            [("Qwen3RMSNorm", (8,))] * 2,
            lambda: [
                (type(norm).__name__, tuple(norm.weight.shape))
                for a in (model("Qwen3").layers[0].self_attn,)
                for norm in (a.q_norm, a.k_norm)
            ],
        ),
    ),
    Fact(
        id="qwen3-norm-before-rope",
        place="R1, Qwen3Attention",
        quote="位于 RoPE 之前",
        says="They come before RoPE: the cached keys are RoPE(RMSNorm(k))",
        check=lambda: cached_before_repeat("Qwen3", norm=True),
    ),
    Fact(
        id="qwen3-norm-bounds",
        place="R1, Qwen3Attention",
        quote="用来抑制 attention logits 过大",
        says="QK-norm bounds the scores, by sqrt(d_k) with unit weights, whatever the input",
        check=normed_scores_bounded,
    ),
    Fact(
        id="qwen2-biases",
        place="R1, Qwen3Attention",
        quote="Qwen2 的 q/k/v_proj 带 bias",
        says="Qwen2's q_proj, k_proj and v_proj have a bias, and o_proj has none",
        check=qwen2_biases,
    ),
    Fact(
        id="qwen3-no-bias",
        place="R1, Qwen3Attention",
        quote="Qwen3 去掉了(attention_bias=False)",
        says="Qwen3 has none: attention_bias is False",
        check=lambda: default("Qwen3", "attention_bias") is False and not biases(model("Qwen3").layers[0].self_attn),
    ),
    Fact(
        id="qwen3-head-dim",
        place="R1, Qwen3Attention",
        quote="head_dim 是独立配置项(默认 128)",
        says="head_dim is 128 by default, whatever d_model / head is",
        check=lambda: default("Qwen3", "head_dim") == 128
        and internals("Qwen3").Qwen3Config(hidden_size=24, num_attention_heads=4).head_dim == 128,
    ),
    Fact(
        id="qwen3-head-dim-free",
        place="R1, Qwen3Attention",
        quote="不一定等于 d_model / head",
        says="It need not be d_model / head: projections are head * head_dim wide",
        check=gives((24, 4 * 8), lambda: sizes(model("Qwen3").layers[0].self_attn.q_proj)),
    ),
    Fact(
        id="qwen3-window-off",
        place="R1, Qwen3Attention",
        quote="当 use_sliding_window=True 时",
        says="Without use_sliding_window, which is False, sliding_window means nothing",
        check=lambda: default("Qwen3", "use_sliding_window") is False
        and config("Qwen3", sliding_window=3, max_window_layers=0).sliding_window is None,
    ),
    Fact(
        id="qwen3-window",
        place="R1, Qwen3Attention",
        quote="第 max_window_layers 层之后的层使用 sliding_window 大小的滑动窗口掩码",
        says="From layer max_window_layers on, a query sees sliding_window keys, itself included",
        check=qwen3_window,
    ),
)

FACTS = (*LLAMA_FACTS, *QWEN3_FACTS)
