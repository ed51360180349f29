"""R1, "MHA", "CrossAttention" and "MQA / GQA"."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity_tests.facts import formulas as seed
from parity_tests.facts.record import Changed, Fact, declared, default, defaults, gives, raises
from parity_tests.facts.subjects import (
    close,
    filled,
    ids,
    internal,
    internals,
    model,
    moved,
    operators,
    run,
    sizes,
    values,
    watch,
)
from parity_tests.harness.hf import cache_of, cached

# --- MHA ---


def torch_mha(memory_length: int | None = None) -> bool:
    """nn.MultiheadAttention against the seed's formula, over itself (causal) or over a memory (padding)."""
    mha = filled(nn.MultiheadAttention(12, 3, batch_first=True))
    x = values("x", 2, 5, 12)
    memory = x if memory_length is None else values("memory", 2, memory_length, 12)
    wq, wk, wv = mha.in_proj_weight.chunk(3)
    bq, bk, bv = mha.in_proj_bias.chunk(3)
    q, k, v = (seed.heads(F.linear(y, w, b), 3) for y, w, b in ((x, wq, bq), (memory, wk, bk), (memory, wv, bv)))
    if memory_length is None:
        visible, told = seed.causal(5), {"attn_mask": ~seed.causal(5)}
    else:
        real = torch.arange(memory_length) < torch.tensor([[memory_length], [memory_length - 2]])
        visible, told = real[:, None, None], {"key_padding_mask": ~real}
    return close(mha(x, memory, memory, **told)[0], mha.out_proj(seed.joined(seed.attention(q, k, v, visible))))


def sdpa_scaled() -> bool:
    q, k, v = values("q", 1, 2, 5, 8), values("k", 1, 2, 5, 8), values("v", 1, 2, 5, 8)
    return close(F.scaled_dot_product_attention(q, k, v), seed.attention(q, k, v))


def saturation() -> bool:
    """Scores of random q and k: the largest probability with the factor and without it."""
    q, k = values("q", 1, 32, 256), values("k", 1, 32, 256)
    scores = q @ k.mT
    scaled, plain = ((scores * factor).softmax(-1).amax(-1).mean() for factor in (256**-0.5, 1.0))
    assert plain > 0.9, f"without it the largest probability is only {plain:.2f}"
    return bool(scaled < 0.5)


def gpt2_probabilities() -> bool:
    """(batch, head, seq, seq), rows that add up to 1."""
    probs = run(model("GPT2"), input_ids=ids(5, rows=2), output_attentions=True).attentions[0]
    assert probs.shape == (2, 4, 5, 5), f"the shape is {tuple(probs.shape)}"
    return close(probs.sum(-1), torch.ones(2, 4, 5))


def bert_sees_all_but_padding() -> bool:
    """A later token reaches the first position; a padded one reaches none that is real."""
    bert, tokens = model("Bert"), ids(5)
    real = torch.tensor([[1, 1, 1, 1, 0]])
    assert all(moved(lambda x: bert(input_ids=x).last_hidden_state, tokens, 4)), "a later token is hidden"
    return moved(lambda x: bert(input_ids=x, attention_mask=real).last_hidden_state, tokens, 4) == [False] * 4 + [True]


def weights_dropped() -> bool:
    """In training some attention weights are 0 and the others doubled, and the output is made of those."""
    mha = filled(nn.MultiheadAttention(12, 3, batch_first=True, dropout=0.5))
    x = values("x", 1, 6, 12)
    whole = mha(x, x, x, average_attn_weights=False)[1]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        y, kept = mha.train()(x, x, x, average_attn_weights=False)
    v = seed.heads(F.linear(x, mha.in_proj_weight[24:], mha.in_proj_bias[24:]), 3)
    assert 0 < (kept == 0).sum() < kept.numel(), "no weight was dropped"
    return close(kept, torch.where(kept == 0, 0, 2 * whole)) and close(y, mha.out_proj(seed.joined(kept @ v)))


MHA_FACTS = (
    Fact(
        id="mha-formula",
        place="R1, MHA · R2, 1.1 注意力机制",
        quote="y = LinearOut( Dropout( Softmax( LinearQ(x) … @ LinearK(x)^T … * rsqrt(d_k) + CausalMask() ) ) @ LinearV(x)",
        says="torch's MultiheadAttention computes LinearOut(Softmax(Q K^T * rsqrt(d_k) + CausalMask) V)",
        check=torch_mha,
    ),
    Fact(
        id="mha-width",
        place="R1, MHA · R2, 1.2",
        quote="x: 输入序列,形状为 (batch, seq, d_model=d_k*head)",
        says="d_model = d_k * head: torch divides by the heads, and refuses what they do not divide",
        check=lambda: nn.MultiheadAttention(12, 3).head_dim == 4
        and raises(AssertionError, lambda: nn.MultiheadAttention(13, 3)),
    ),
    Fact(
        id="mha-qkv-sizes",
        place="R1, MHA",
        quote="LinearQ, LinearK, LinearV: … d_model -> d_k*head",
        says="LinearQ, LinearK and LinearV map d_model to d_k * head (torch stacks the three)",
        check=gives((3 * 12, 12), lambda: tuple(nn.MultiheadAttention(12, 3).in_proj_weight.shape)),
    ),
    Fact(
        id="mha-scale",
        place="R1, MHA",
        quote="rsqrt(d_k): 缩放因子,防止点积过大导致 Softmax 饱和",
        says="Without rsqrt(d_k) the softmax saturates (d_k = 256, random q and k)",
        check=saturation,
    ),
    Fact(
        id="sdpa-scale",
        place="R1, MHA",
        quote="rsqrt(d_k)",
        says="scaled_dot_product_attention scales by rsqrt(d_k) unless told otherwise",
        check=sdpa_scaled,
    ),
    Fact(
        id="causal-mask",
        place="R1, MHA · R2, 2.3",
        quote="形状为 (seq, seq),上三角部分为 -inf,对角线和其他部分为 0",
        says="CausalMask is (seq, seq), -inf above the diagonal, 0 on it and below",
        check=lambda: torch.equal(
            nn.Transformer.generate_square_subsequent_mask(3),
            torch.tensor([[0.0, -torch.inf, -torch.inf], [0.0, 0.0, -torch.inf], [0.0, 0.0, 0.0]]),
        ),
    ),
    Fact(
        id="bert-padding-mask-only",
        place="R1, MHA",
        quote="BERT 等 Encoder 只用 PaddingMask 屏蔽 padding",
        says="BERT hides padding and nothing else",
        check=bert_sees_all_but_padding,
    ),
    Fact(
        id="softmax-shape",
        place="R1, MHA",
        quote="Softmax: … 输出形状为 (batch, head, seq, seq)",
        says="Softmax normalises the attention weights, as (batch, head, seq, seq)",
        check=gpt2_probabilities,
    ),
    Fact(
        id="dropout-on-weights",
        place="R1, MHA",
        quote="Dropout: 随机丢弃一些注意力权重",
        says="Dropout drops attention weights, and the output is made of what is left",
        check=weights_dropped,
    ),
    Fact(
        id="mha-out-size",
        place="R1, MHA · R2, 1.2",
        quote="LinearOut: … d_k*head -> d_model",
        says="LinearOut maps d_k * head back to d_model",
        check=gives((12, 12), lambda: sizes(nn.MultiheadAttention(12, 3).out_proj)),
    ),
)


# --- CrossAttention ---


def torch_decoder(layers: int = 2) -> nn.TransformerDecoder:
    return filled(nn.TransformerDecoder(nn.TransformerDecoderLayer(12, 3, 20, batch_first=True), layers))


def memory_unmasked() -> bool:
    """The last token of the memory reaches the first position of the target, and does not once it is padding."""
    decoder, target, memory = torch_decoder(1), values("target", 1, 4, 12), values("memory", 1, 6, 12)
    padding = torch.tensor([[False] * 5 + [True]])
    assert all(moved(lambda m: decoder(target, m), memory, 5)), "part of the target does not see the last memory"
    return not any(moved(lambda m: decoder(target, m, memory_key_padding_mask=padding), memory, 5))


def decoder_causality() -> bool:
    """With tgt_mask a target token reaches itself and later ones only, through two layers; without it, all."""
    decoder, target, memory = torch_decoder(), values("target", 1, 5, 12), values("memory", 1, 6, 12)
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    assert all(moved(lambda t: decoder(t, memory), target, 3)), "without the mask something is hidden already"
    return moved(lambda t: decoder(t, memory, tgt_mask=mask), target, 3) == [False] * 3 + [True] * 2


def staircase() -> bool:
    """wait-k, k = 2: target i sees the first i + 2 of the source, so that source j reaches targets from j - 1 on."""
    mha = filled(nn.MultiheadAttention(12, 3, batch_first=True))
    target, source = values("target", 1, 4, 12), values("source", 1, 6, 12)
    visible = torch.arange(6) < torch.arange(4)[:, None] + 2
    reach = [moved(lambda m: mha(target, m, m, attn_mask=~visible)[0], source, j) for j in range(6)]
    return reach == [[j < i + 2 for i in range(4)] for j in range(6)]


def same_module() -> bool:
    layer = nn.TransformerDecoderLayer(12, 3, 20)
    one, other = layer.self_attn, layer.multihead_attn
    shapes = [{name: p.shape for name, p in each.named_parameters()} for each in (one, other)]
    return type(one) is type(other) and shapes[0] == shapes[1]


def crossing(family: str) -> tuple[Any, Tensor]:
    """What the crossattention of the first layer was given and gave, and the memory."""
    memory = values("memory", 1, 7, 24)
    if family == "Bert":
        net, path = model("Bert", is_decoder=True, add_cross_attention=True), "encoder.layer.0.crossattention.self"
    else:
        net, path = model("GPT2", add_cross_attention=True), "h.0.crossattention"
    (seen,) = watch(net, path, input_ids=ids(5), encoder_hidden_states=memory)
    return seen, memory


def bert_cross() -> bool:
    seen, memory = crossing("Bert")
    a = seen.module
    q, k, v = (seed.heads(y, 4) for y in (a.query(seen.x), a.key(memory), a.value(memory)))
    return close(seen.y, seed.joined(seed.attention(q, k, v)))


def gpt2_cross() -> bool:
    seen, memory = crossing("GPT2")
    a = seen.module
    q = seed.heads(a.q_attn(seen.x), 4)
    k, v = (seed.heads(y, 4) for y in a.c_attn(memory).chunk(2, -1))
    return close(seen.y, a.c_proj(seed.joined(seed.attention(q, k, v))))


CROSS_FACTS = (
    Fact(
        id="cross-formula",
        place="R1, CrossAttention",
        quote="@ LinearK(memory)^T … * rsqrt(d_k) + PaddingMask() ) ) @ LinearV(memory)",
        says="Cross-attention is MHA with K and V made of the memory, padding masked, any memory length",
        check=lambda: torch_mha(memory_length=7),
    ),
    Fact(
        id="cross-unmasked",
        place="R1, CrossAttention · R2, 2.3",
        quote="没有 CausalMask:Decoder 的每个位置都可以看到完整的源序列,只需屏蔽 padding",
        says="torch's decoder layer lets each position see the whole memory, padding excepted",
        check=memory_unmasked,
    ),
    Fact(
        id="decoder-causal-by-self-attention",
        place="R1, CrossAttention",
        quote="整个 Decoder 的因果性完全由 Self-Attention 的 CausalMask 保证",
        says="The self-attention's CausalMask alone makes a whole decoder causal",
        check=decoder_causality,
    ),
    Fact(
        id="cross-weights-shape",
        place="R1, CrossAttention",
        quote="注意力矩阵形状为 (seq, mem_seq)",
        says="The attention matrix is (seq, mem_seq)",
        check=gives(
            (1, 4, 6),
            lambda: tuple(nn.MultiheadAttention(12, 3)(*(torch.ones(n, 1, 12) for n in (4, 6, 6)))[1].shape),
        ),
    ),
    Fact(
        id="wait-k",
        place="R1, CrossAttention",
        quote="例外:源序列流式到达时 … 需要\"目标位置ii 只能看源序列前g(i)g(i) 个位置\"的阶梯形掩码",
        says="A staircase mask makes target i depend on the first g(i) source positions only (wait-k)",
        check=staircase,
    ),
    Fact(
        id="cross-same-module",
        place="R1, CrossAttention",
        quote="与 MHA 是同一个模块,只是 K、V 的输入换成了 memory",
        says="torch's self_attn and multihead_attn are one class with equal parameters",
        check=same_module,
    ),
    Fact(
        id="torch-multihead-attn",
        place="R1, CrossAttention",
        quote="PyTorch TransformerDecoderLayer.multihead_attn",
        says="The cross-attention of TransformerDecoderLayer is named multihead_attn",
        check=lambda: isinstance(nn.TransformerDecoderLayer(12, 3, 20).multihead_attn, nn.MultiheadAttention),
    ),
    Fact(
        id="bert-crossattention",
        place="R1, CrossAttention",
        quote="HF 中 BertLayer.crossattention(add_cross_attention=True)",
        says="BertLayer.crossattention is there with add_cross_attention=True, and only then",
        check=lambda: hasattr(model("Bert", is_decoder=True, add_cross_attention=True).encoder.layer[0], "crossattention")
        and not hasattr(model("Bert").encoder.layer[0], "crossattention"),
    ),
    Fact(
        id="bert-cross-numbers",
        place="R1, CrossAttention",
        quote="HF 中 BertLayer.crossattention",
        says="BertLayer.crossattention computes Softmax(Q(x) K(memory)^T * rsqrt(d_k)) V(memory)",
        check=bert_cross,
    ),
    Fact(
        id="gpt2-crossattention",
        place="R1, CrossAttention",
        quote="GPT2Block.crossattention(GPT2Attention(is_cross_attention=True)",
        says="GPT2Block.crossattention is a GPT2Attention of its own, is_cross_attention=True",
        check=lambda: all(
            isinstance(a, internal("GPT2", "GPT2Attention")) and a.is_cross_attention == cross
            for block in model("GPT2", add_cross_attention=True).h
            for a, cross in ((block.attn, False), (block.crossattention, True))
        ),
    ),
    Fact(
        id="gpt2-q-attn",
        place="R1, CrossAttention",
        quote="此时 Q 用单独的 q_attn,K、V 共用 c_attn",
        says="There Q has a projection of its own, q_attn, and K and V share c_attn",
        check=gpt2_cross,
    ),
)


# --- MQA / GQA ---


def llama_cache(heads_kv: int) -> Tensor:
    """The keys that the first layer of a Llama holds after five tokens."""
    out = run(model("Llama", num_key_value_heads=heads_kv), input_ids=ids(5), use_cache=True)
    return cached(cache_of(out), 0)[0]  # pyright: ignore[reportOptionalSubscript]


def one_head_of_keys() -> bool:
    """The cache has one head; and attention gives every query head that one."""
    net = model("Llama", num_key_value_heads=1)
    (seen,) = watch(net, "layers.0.self_attn", input_ids=ids(5))
    a, (cos, sin) = seen.module, seen.kwargs["position_embeddings"]
    q, k, v = (seed.heads(proj(seen.x), n) for proj, n in ((a.q_proj, 4), (a.k_proj, 1), (a.v_proj, 1)))
    y = seed.attention(seed.rope(q, cos, sin), seed.rope(k, cos, sin), v, seed.causal(5))
    assert llama_cache(1).shape == (1, 1, 5, 6), f"the cache has the shape {tuple(llama_cache(1).shape)}"
    return close(seen.y, a.o_proj(seed.joined(y)))


def sdpa_groups() -> tuple[Tensor, Tensor, Tensor]:
    return values("q", 1, 6, 5, 8).float(), values("k", 1, 2, 5, 8).float(), values("v", 1, 2, 5, 8).float()


def sdpa_repeats() -> bool:
    q, k, v = sdpa_groups()
    repeated = F.scaled_dot_product_attention(q, k.repeat_interleave(3, dim=1), v.repeat_interleave(3, dim=1))
    return close(F.scaled_dot_product_attention(q, k, v, enable_gqa=True), repeated, bar=1e-6)


def sdpa_copies_nothing() -> bool:
    """No operator that repeats, expands or copies runs before the kernel."""
    q, k, v = sdpa_groups()
    ran = operators(lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True))
    assert len(ran) == 1, f"it runs {', '.join(ran)}"
    return ran[0].startswith("_scaled_dot_product")


def mha_from_gqa() -> bool:
    """A Llama with 2 KV heads, and one with 4 whose key and value weights are those, repeated."""
    few, many = model("Llama"), model("Llama", num_key_value_heads=4)
    state = few.state_dict()
    for name in [n for n in state if "k_proj" in n or "v_proj" in n]:
        state[name] = state[name].unflatten(0, (2, 6)).repeat_interleave(2, 0).flatten(0, 1)
    many.load_state_dict(state)
    return close(*(run(m, input_ids=ids(6)).last_hidden_state for m in (few, many)))


GQA_FACTS = (
    Fact(
        id="gqa-sizes",
        place="R1, MQA / GQA",
        quote="LinearK, LinearV: d_model -> d_k*head_kv,其中 head_kv < head;LinearQ 仍为 d_model -> d_k*head",
        says="LinearK and LinearV map d_model to d_k * head_kv, LinearQ to d_k * head",
        check=gives(
            {"q": (24, 24), "k": (24, 12), "v": (24, 12)},
            lambda: {n: sizes(getattr(model("Llama").layers[0].self_attn, f"{n}_proj")) for n in "qkv"},
        ),
    ),
    Fact(
        id="num-key-value-groups",
        place="R1, MQA / GQA",
        quote="n_rep = head / head_kv 份(即 num_key_value_groups)",
        says="num_key_value_groups is head / head_kv",
        check=gives([4, 2, 1], lambda: [
            model("Llama", num_key_value_heads=n).layers[0].self_attn.num_key_value_groups for n in (1, 2, 4)
        ]),
    ),
    Fact(
        id="repeat-kv",
        place="R1, MQA / GQA",
        quote="从 (batch, head_kv, seq, d_k) 扩展到 (batch, head, seq, d_k),等价于 repeat_interleave(dim=1)",
        says="HF's repeat_kv is repeat_interleave(dim=1)",
        check=lambda: torch.equal(
            internals("Llama").repeat_kv(values("k", 2, 3, 5, 4), 2), values("k", 2, 3, 5, 4).repeat_interleave(2, dim=1)
        ),
    ),
    Fact(
        id="sdpa-gqa",
        place="R1, MQA / GQA",
        quote="SDPA(enable_gqa=True)",
        says="SDPA(enable_gqa=True) equals repeated K and V",
        check=sdpa_repeats,
    ),
    Fact(
        id="sdpa-gqa-no-copy",
        place="R1, MQA / GQA",
        quote="kernel 内部按组索引,不会真的复制",
        says="SDPA(enable_gqa=True) hands K and V to its kernel as they are, without a copy",
        check=sdpa_copies_nothing,
    ),
    Fact(
        id="repeat-annotation",
        place="R1, MQA / GQA",
        quote="@ Repeat(LinearK(x))^T # as (batch, head_kv, d_k, seq)",
        says="What Repeat gives has head_kv heads, as the shapes beside the formula say",
        check=lambda: internals("Llama").repeat_kv(values("k", 1, 2, 5, 6), 3).shape[1] == 2,
        changed=Changed(
            now="it has head of them, as the text below says: head_kv are what it gets",
            check=lambda: internals("Llama").repeat_kv(values("k", 1, 2, 5, 6), 3).shape[1] == 6,
        ),
    ),
    Fact(
        id="mqa-end",
        place="R1, MQA / GQA",
        quote="head_kv = 1 时为 MQA",
        says="With head_kv = 1 all query heads use one head of keys",
        check=one_head_of_keys,
    ),
    Fact(
        id="mha-end",
        place="R1, MQA / GQA",
        quote="head_kv = head 时退化为 MHA",
        says="With head_kv = head it is MHA: repeat_kv gives back what it got",
        check=lambda: (x := values("k", 1, 4, 5, 6)) is internals("Llama").repeat_kv(x, 1),
    ),
    Fact(
        id="gqa-equals-mha",
        place="R1, MQA / GQA",
        quote="把每个 KV 头复制 n_rep = head / head_kv 份",
        says="GQA is MHA whose key and value weights are repeated",
        check=mha_from_gqa,
    ),
    Fact(
        id="gqa-cache",
        place="R1, MQA / GQA",
        quote="KV Cache 只需存 head_kv 个头,显存是 MHA 的 head_kv / head",
        says="The cache holds head_kv heads, head_kv / head of what MHA holds",
        check=lambda: llama_cache(2).shape[1] == 2 and llama_cache(2).numel() * 2 == llama_cache(4).numel(),
    ),
    Fact(
        id="llama-kv-heads-none",
        place="R1, MQA / GQA",
        quote="Llama 默认为 None(等于 num_attention_heads,即 MHA)",
        says="Llama's num_key_value_heads is None by default, which means num_attention_heads",
        check=lambda: declared("Llama", "num_key_value_heads") is None
        and default("Llama", "num_key_value_heads") == default("Llama", "num_attention_heads"),
    ),
    Fact(
        id="mixtral-heads",
        place="R1, MQA / GQA",
        quote="Mixtral 为 32 个 Q 头 / 8 个 KV 头",
        says="Mixtral has 32 query heads and 8 KV heads",
        check=defaults("Mixtral", num_attention_heads=32, num_key_value_heads=8),
    ),
)

FACTS = (*MHA_FACTS, *CROSS_FACTS, *GQA_FACTS)
