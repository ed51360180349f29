"""R1, "Attention": MHA, CrossAttention, MQA / GQA, MLA, LlamaAttention, Qwen3Attention."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity_tests.facts import formulas as seed
from parity_tests.facts.record import Changed, Fact, declared, default, defaults, gives, raises
from parity_tests.facts.subjects import (
    biases,
    close,
    config,
    filled,
    ids,
    internal,
    internals,
    model,
    moved,
    operators,
    over,
    published,
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
        rows=("A1",),
    ),
    Fact(
        id="mha-width",
        place="R1, MHA · R2, 1.2",
        quote="x: 输入序列,形状为 (batch, seq, d_model=d_k*head)",
        says="d_model = d_k * head: torch divides by the heads, and refuses what they do not divide",
        check=lambda: nn.MultiheadAttention(12, 3).head_dim == 4
        and raises(AssertionError, lambda: nn.MultiheadAttention(13, 3)),
        rows=("A1",),
    ),
    Fact(
        id="mha-qkv-sizes",
        place="R1, MHA",
        quote="LinearQ, LinearK, LinearV: … d_model -> d_k*head",
        says="LinearQ, LinearK and LinearV map d_model to d_k * head (torch stacks the three)",
        check=gives((3 * 12, 12), lambda: tuple(nn.MultiheadAttention(12, 3).in_proj_weight.shape)),
        rows=("A1",),
    ),
    Fact(
        id="mha-scale",
        place="R1, MHA",
        quote="rsqrt(d_k): 缩放因子,防止点积过大导致 Softmax 饱和",
        says="Without rsqrt(d_k) the softmax saturates (d_k = 256, random q and k)",
        check=saturation,
        rows=("A1",),
    ),
    Fact(
        id="sdpa-scale",
        place="R1, MHA",
        quote="rsqrt(d_k)",
        says="scaled_dot_product_attention scales by rsqrt(d_k) unless told otherwise",
        check=lambda: close(
            F.scaled_dot_product_attention(*(values(n, 1, 2, 5, 8) for n in "qkv")),
            seed.attention(*(values(n, 1, 2, 5, 8) for n in "qkv")),
        ),
        rows=("A1",),
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
        rows=("A1",),
    ),
    Fact(
        id="bert-padding-mask-only",
        place="R1, MHA",
        quote="BERT 等 Encoder 只用 PaddingMask 屏蔽 padding",
        says="BERT hides padding and nothing else",
        check=bert_sees_all_but_padding,
        rows=("A1",),
    ),
    Fact(
        id="softmax-shape",
        place="R1, MHA",
        quote="Softmax: … 输出形状为 (batch, head, seq, seq)",
        says="Softmax normalises the attention weights, as (batch, head, seq, seq)",
        check=gpt2_probabilities,
        rows=("A1",),
    ),
    Fact(
        id="dropout-on-weights",
        place="R1, MHA",
        quote="Dropout: 随机丢弃一些注意力权重",
        says="Dropout drops attention weights, and the output is made of what is left",
        check=weights_dropped,
        rows=("A1",),
    ),
    Fact(
        id="mha-out-size",
        place="R1, MHA · R2, 1.2",
        quote="LinearOut: … d_k*head -> d_model",
        says="LinearOut maps d_k * head back to d_model",
        check=gives((12, 12), lambda: sizes(nn.MultiheadAttention(12, 3).out_proj)),
        rows=("A1",),
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
        rows=("A2",),
    ),
    Fact(
        id="cross-unmasked",
        place="R1, CrossAttention · R2, 2.3",
        quote="没有 CausalMask:Decoder 的每个位置都可以看到完整的源序列,只需屏蔽 padding",
        says="torch's decoder layer lets each position see the whole memory, padding excepted",
        check=memory_unmasked,
        rows=("A2",),
    ),
    Fact(
        id="decoder-causal-by-self-attention",
        place="R1, CrossAttention",
        quote="整个 Decoder 的因果性完全由 Self-Attention 的 CausalMask 保证",
        says="The self-attention's CausalMask alone makes a whole decoder causal",
        check=decoder_causality,
        rows=("A2",),
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
        rows=("A2",),
    ),
    Fact(
        id="wait-k",
        place="R1, CrossAttention",
        quote="例外:源序列流式到达时 … 需要\"目标位置ii 只能看源序列前g(i)g(i) 个位置\"的阶梯形掩码",
        says="A staircase mask makes target i depend on the first g(i) source positions only (wait-k)",
        check=staircase,
        rows=("A2",),
    ),
    Fact(
        id="cross-same-module",
        place="R1, CrossAttention",
        quote="与 MHA 是同一个模块,只是 K、V 的输入换成了 memory",
        says="torch's self_attn and multihead_attn are one class with equal parameters",
        check=same_module,
        rows=("A2",),
    ),
    Fact(
        id="torch-multihead-attn",
        place="R1, CrossAttention",
        quote="PyTorch TransformerDecoderLayer.multihead_attn",
        says="The cross-attention of TransformerDecoderLayer is named multihead_attn",
        check=lambda: isinstance(nn.TransformerDecoderLayer(12, 3, 20).multihead_attn, nn.MultiheadAttention),
        rows=("A2",),
    ),
    Fact(
        id="bert-crossattention",
        place="R1, CrossAttention",
        quote="HF 中 BertLayer.crossattention(add_cross_attention=True)",
        says="BertLayer.crossattention is there with add_cross_attention=True, and only then",
        check=lambda: hasattr(model("Bert", is_decoder=True, add_cross_attention=True).encoder.layer[0], "crossattention")
        and not hasattr(model("Bert").encoder.layer[0], "crossattention"),
        rows=("A2",),
    ),
    Fact(
        id="bert-cross-numbers",
        place="R1, CrossAttention",
        quote="HF 中 BertLayer.crossattention",
        says="BertLayer.crossattention computes Softmax(Q(x) K(memory)^T * rsqrt(d_k)) V(memory)",
        check=bert_cross,
        rows=("A2",),
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
        rows=("A2",),
    ),
    Fact(
        id="gpt2-q-attn",
        place="R1, CrossAttention",
        quote="此时 Q 用单独的 q_attn,K、V 共用 c_attn",
        says="There Q has a projection of its own, q_attn, and K and V share c_attn",
        check=gpt2_cross,
        rows=("A2",),
    ),
)

# --- MQA / GQA ---


def llama_cache(heads_kv: int) -> Tensor:
    """The keys that the first layer of a Llama holds after five tokens."""
    out = run(model("Llama", num_key_value_heads=heads_kv), input_ids=ids(5), use_cache=True)
    return cached(cache_of(out), 0)[0]  # pyright: ignore[reportOptionalSubscript]


def sdpa_groups() -> tuple[Tensor, Tensor, Tensor]:
    return values("q", 1, 6, 5, 8).float(), values("k", 1, 2, 5, 8).float(), values("v", 1, 2, 5, 8).float()


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
        rows=("A3",),
    ),
    Fact(
        id="num-key-value-groups",
        place="R1, MQA / GQA",
        quote="n_rep = head / head_kv 份(即 num_key_value_groups)",
        says="num_key_value_groups is head / head_kv",
        check=gives([4, 2, 1], lambda: [
            model("Llama", num_key_value_heads=n).layers[0].self_attn.num_key_value_groups for n in (1, 2, 4)
        ]),
        rows=("A3",),
    ),
    Fact(
        id="repeat-kv",
        place="R1, MQA / GQA",
        quote="从 (batch, head_kv, seq, d_k) 扩展到 (batch, head, seq, d_k),等价于 repeat_interleave(dim=1)",
        says="HF's repeat_kv is repeat_interleave(dim=1)",
        check=lambda: torch.equal(
            internals("Llama").repeat_kv(values("k", 2, 3, 5, 4), 2), values("k", 2, 3, 5, 4).repeat_interleave(2, dim=1)
        ),
        rows=("A3",),
    ),
    Fact(
        id="sdpa-gqa",
        place="R1, MQA / GQA",
        quote="SDPA(enable_gqa=True)",
        says="SDPA(enable_gqa=True) equals repeated K and V",
        check=lambda: close(
            F.scaled_dot_product_attention(*sdpa_groups(), enable_gqa=True),
            F.scaled_dot_product_attention(sdpa_groups()[0], *(x.repeat_interleave(3, dim=1) for x in sdpa_groups()[1:])),
            bar=1e-6,
        ),
        rows=("A3",),
    ),
    Fact(
        id="sdpa-gqa-no-copy",
        place="R1, MQA / GQA",
        quote="kernel 内部按组索引,不会真的复制",
        says="SDPA(enable_gqa=True) hands K and V to its kernel as they are, without a copy",
        check=sdpa_copies_nothing,
        rows=("A3",),
    ),
    Fact(
        id="mqa-end",
        place="R1, MQA / GQA",
        quote="head_kv = 1 时为 MQA",
        says="With head_kv = 1 all query heads use one head of keys",
        check=gives((1, 1, 5, 6), lambda: tuple(llama_cache(1).shape)),
        rows=("A3",),
    ),
    Fact(
        id="mha-end",
        place="R1, MQA / GQA",
        quote="head_kv = head 时退化为 MHA",
        says="With head_kv = head it is MHA: repeat_kv gives back what it got",
        check=lambda: (x := values("k", 1, 4, 5, 6)) is internals("Llama").repeat_kv(x, 1),
        rows=("A3",),
    ),
    Fact(
        id="gqa-equals-mha",
        place="R1, MQA / GQA",
        quote="把每个 KV 头复制 n_rep = head / head_kv 份",
        says="GQA is MHA whose key and value weights are repeated",
        check=mha_from_gqa,
        rows=("A3",),
    ),
    Fact(
        id="gqa-cache",
        place="R1, MQA / GQA",
        quote="KV Cache 只需存 head_kv 个头,显存是 MHA 的 head_kv / head",
        says="The cache holds head_kv heads, head_kv / head of what MHA holds",
        check=lambda: llama_cache(2).shape[1] == 2 and llama_cache(2).numel() * 2 == llama_cache(4).numel(),
        rows=("A3",),
    ),
    Fact(
        id="llama-kv-heads-none",
        place="R1, MQA / GQA",
        quote="Llama 默认为 None(等于 num_attention_heads,即 MHA)",
        says="Llama's num_key_value_heads is None by default, which means num_attention_heads",
        check=lambda: declared("Llama", "num_key_value_heads") is None
        and default("Llama", "num_key_value_heads") == default("Llama", "num_attention_heads"),
        rows=("A3",),
    ),
    Fact(
        id="mixtral-heads",
        place="R1, MQA / GQA",
        quote="Mixtral 为 32 个 Q 头 / 8 个 KV 头",
        says="Mixtral has 32 query heads and 8 KV heads",
        check=defaults("Mixtral", num_attention_heads=32, num_key_value_heads=8),
        rows=("A3",),
    ),
)

# --- MLA ---

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.5,
    "original_max_position_embeddings": 16,
}


def mla() -> tuple[Any, dict[str, Tensor]]:
    """A run of the first MLA, and what the seed's first four lines make of its input."""
    (seen,) = watch(model("DeepseekV3"), "layers.0.self_attn", input_ids=ids(6))
    a, x = seen.module, seen.x
    cos, sin = (table.chunk(2, -1)[0].repeat_interleave(2, -1).unsqueeze(1) for table in seen.kwargs["position_embeddings"])

    def turned(y: Tensor) -> Tensor:  # adjacent pairs: rope_interleave
        return y * cos + seed.rotate_every_two(y) * sin

    c_q = seed.rms_norm(a.q_a_proj(x), a.q_a_layernorm.weight, 1e-6)
    q_nope, q_rope = seed.heads(a.q_b_proj(c_q), 4).split([6, 4], -1)
    c_kv, k_rope = a.kv_a_proj_with_mqa(x).split([9, 4], -1)
    c_kv = seed.rms_norm(c_kv, a.kv_a_layernorm.weight, 1e-6)
    k_nope, v = seed.heads(a.kv_b_proj(c_kv), 4).split([6, 8], -1)
    parts = {"q_nope": q_nope, "q_rope": turned(q_rope), "k_nope": k_nope, "k_rope": turned(k_rope[:, None]), "v": v, "c": c_kv}
    return seen, parts


def mla_expanded() -> bool:
    seen, part = mla()
    q = torch.cat([part["q_nope"], part["q_rope"]], -1)
    k = torch.cat([part["k_nope"], part["k_rope"].expand(-1, 4, -1, -1)], -1)
    y = seed.attention(q, k, part["v"], seed.causal(6), scale=10**-0.5)
    return close(seen.y, seen.module.o_proj(seed.joined(y)))


def mla_absorbed() -> bool:
    """kv_b_proj split in two, one half folded into Q and the other into LinearOut: attention on the latents alone."""
    seen, part = mla()
    up_k, up_v = seen.module.kv_b_proj.weight.unflatten(0, (4, 14)).split([6, 8], 1)  # as (h, 6, r), (h, 8, r)
    q = torch.cat([part["q_nope"] @ up_k, part["q_rope"]], -1)  # as (b, h, s, r + 4)
    latents = part["c"][:, None]
    k = torch.cat([latents, part["k_rope"]], -1)  # as (b, 1, t, r + 4)
    y = seed.attention(q, k, latents, seed.causal(6), scale=10**-0.5) @ up_v.mT
    return close(seen.y, seen.module.o_proj(seed.joined(y)))


def rotated_keys_resist_folding() -> bool:
    """The matrix A with q^T A c = score, found at distance 0, at distance 3: right without RoPE, wrong with it."""
    q, c, up = values("q", 8), values("c", 10), values("up", 8, 10)

    def score(distance: int, rotate: bool) -> Tensor:
        k = (up @ c)[None, None, None]
        return q @ (seed.rope_at(k, first=-distance) if rotate else k).flatten()

    folded = q @ up @ c
    assert close(score(3, rotate=False), folded), "even without RoPE"
    assert close(score(0, rotate=True), folded), "not even at distance 0"
    return bool((score(3, rotate=True) - folded).abs() > 0.1 * folded.abs())


def nope_is_position_free() -> bool:
    """At other positions the latent in the cache stays, and the rotated numbers change."""
    net = model("DeepseekV3")
    first, later = (run(net, input_ids=ids(5), position_ids=torch.arange(5)[None] + n, use_cache=True) for n in (0, 7))
    (c, k), (c2, k2) = (cached(cache_of(out), 0) for out in (first, later))  # pyright: ignore[reportGeneralTypeIssues]
    return torch.equal(c, c2) and not torch.equal(k, k2)


def mla_cache(**changes: Any) -> tuple[Tensor, Tensor]:
    out = run(model("DeepseekV3", **changes), input_ids=ids(3), use_cache=True)
    return cached(cache_of(out), 1)  # pyright: ignore[reportReturnType]


def numbers_a_token() -> int:
    """Of one layer's cache, with the published ranks; the heads are few, and do not matter."""
    held = mla_cache(kv_lora_rank=512, qk_rope_head_dim=64, num_hidden_layers=2)
    return sum(x.numel() for x in held) // 3


def mla_expands() -> bool:
    """Over a cache of 3 tokens and one new, kv_b_proj unpacks 4, or (before 5.15) the cache holds them unpacked."""
    net = model("DeepseekV3")
    past = cache_of(run(net, input_ids=ids(3), use_cache=True))
    (seen,) = watch(net, "layers.0.self_attn.kv_b_proj", input_ids=ids(1), **over(past, net))
    assert seen.x.shape[-2] == 4, f"kv_b_proj unpacks {seen.x.shape[-2]} of 4 tokens"
    return True


MSCALE = 0.1 * YARN["mscale_all_dim"] * math.log(YARN["factor"]) + 1


def score_scale(**changes: Any) -> float:
    return model("DeepseekV3", **changes).layers[0].self_attn.scaling


def published_mla() -> Any:
    return published("DeepseekV3", num_hidden_layers=1).layers[0].self_attn


def mha_numbers() -> int:
    """Keys and values of one token, unpacked to all heads, at the default size."""
    a = published_mla()
    unpacked = a.kv_b_proj.out_features  # head x (nope + v)
    return unpacked + a.config.num_attention_heads * a.config.qk_rope_head_dim


MLA_FACTS = (
    Fact(
        id="mla-formula",
        place="R1, MLA",
        quote="Concat(q_nope, RoPE(q_rope)) … @ Concat(k_nope, Broadcast(RoPE(k_rope)))^T … * rsqrt(192) * mscale",
        says="DeepseekV3Attention computes MLA as written, from RMSNorm(LinearQA(x)) to LinearOut",
        check=mla_expanded,
        rows=("A4",),
    ),
    *(
        Fact(
            id=f"deepseek-{name.replace('_', '-')}",
            place="R1, MLA",
            quote=quote,
            says=f"DeepSeek-V3's {name} is {value} by default",
            check=defaults("DeepseekV3", **{name: value}),
            rows=("A4",),
        )
        for name, value, quote in (
            ("q_lora_rank", 1536, "q_lora_rank=1536"),
            ("kv_lora_rank", 512, "kv_lora_rank=512"),
            ("num_attention_heads", 128, "head=128"),
            ("qk_nope_head_dim", 128, "d_nope=128"),
            ("qk_rope_head_dim", 64, "d_rope=64"),
            ("v_head_dim", 128, "d_v=128"),
        )
    ),
    Fact(
        id="mla-q-projections",
        place="R1, MLA",
        quote="q_a_proj / q_b_proj),d_model=7168 -> 1536 -> head×(128+64)",
        says="q_a_proj is 7168 -> 1536, q_b_proj 1536 -> 128 x (128 + 64)",
        check=gives(
            [(7168, 1536), (1536, 128 * (128 + 64))],
            lambda: [sizes(published_mla().q_a_proj), sizes(published_mla().q_b_proj)],
        ),
        rows=("A4",),
    ),
    Fact(
        id="mla-q-norm",
        place="R1, MLA",
        quote="中间夹一个 q_a_layernorm",
        says="Between them stands q_a_layernorm, an RMSNorm over 1536",
        check=lambda: type(published_mla().q_a_layernorm).__name__ == "DeepseekV3RMSNorm"
        and published_mla().q_a_layernorm.weight.shape == (1536,),
        rows=("A4",),
    ),
    Fact(
        id="mla-kv-a",
        place="R1, MLA",
        quote="kv_a_proj_with_mqa,一次性产生压缩后的 latent c_kv(512 维)和所有头共享的 k_rope(64 维",
        says="kv_a_proj_with_mqa gives the latent (512) and one k_rope (64) for all heads at once",
        check=gives((7168, 512 + 64), lambda: sizes(published_mla().kv_a_proj_with_mqa)),
        rows=("A4",),
    ),
    Fact(
        id="mla-kv-b",
        place="R1, MLA",
        quote="kv_b_proj,把 latent 解压回每个头的 k_nope 和 v,512 -> head×(128+128)",
        says="kv_b_proj unpacks the latent, 512 -> 128 x (128 + 128)",
        check=gives((512, 128 * (128 + 128)), lambda: sizes(published_mla().kv_b_proj)),
        rows=("A4",),
    ),
    Fact(
        id="mla-rope-blocks-folding",
        place="R1, MLA",
        quote="如果直接作用在解压后的 K 上,kv_b_proj 就无法被吸收进 Q",
        says="RoPE on unpacked keys would keep kv_b_proj from being folded into Q",
        check=rotated_keys_resist_folding,
        rows=("A5",),
    ),
    Fact(
        id="mla-nope",
        place="R1, MLA",
        quote="所以单独拿出 64 维承载位置信息,其余 128 维(nope)不加位置编码",
        says="64 dimensions carry the position, and the other 128 none",
        check=nope_is_position_free,
        changed=Changed(
            until="5.15.0",
            now="the cache, in which this is looked up, holds whole keys, rotated part included",
            check=lambda: tuple(mla_cache()[0].shape) == (1, 4, 3, 6 + 4),
        ),
        rows=("A4",),
    ),
    Fact(
        id="mla-cache-576",
        place="R1, MLA",
        quote="KV Cache 只存 c_kv 和 k_rope,每 token 每层 512+64=576 个数",
        says="The cache holds c_kv and k_rope only: 576 numbers a token and layer",
        check=gives(576, numbers_a_token),
        changed=Changed(
            until="5.15.0",
            now="it holds unpacked keys and values of all heads",
            check=lambda: numbers_a_token() == 4 * (6 + 64 + 8),
        ),
        rows=("A4", "A5"),
    ),
    Fact(
        id="mla-cache-compressed",
        place="R1, MLA",
        quote="HF 实现里 cache.update(kv_nope, k_rot) 也是在压缩状态下读写的",
        says="HF's cache is written and read in the compressed state, as one head of latents",
        check=gives([(1, 1, 3, 9), (1, 1, 3, 4)], lambda: [tuple(x.shape) for x in mla_cache()]),
        changed=Changed(
            until="5.15.0",
            now="it is written after unpacking, head by head",
            check=lambda: [tuple(x.shape) for x in mla_cache()] == [(1, 4, 3, 10), (1, 4, 3, 8)],
        ),
        rows=("A4",),
    ),
    Fact(
        id="mla-mha-40960",
        place="R1, MLA",
        quote="而 128 头的 MHA 需要 128×(192+128)=40960 个数",
        says="MHA with 128 heads would hold 40960 numbers a token and layer",
        check=gives(40960, mha_numbers),
        rows=("A4",),
    ),
    Fact(
        id="mla-mscale",
        place="R1, MLA",
        quote="使用 YaRN 扩展上下文时对 softmax scale 的修正",
        says="With YaRN the softmax scale is corrected (by the square of 0.1 mscale_all_dim ln(factor) + 1)",
        check=lambda: close(score_scale(), 10**-0.5)
        and close(score_scale(rope_scaling=YARN), 10**-0.5 * MSCALE**2),
        rows=("A4",),
    ),
    Fact(
        id="mla-mscale-once",
        place="R1, MLA",
        quote="* rsqrt(192) * mscale",
        says="That correction is YaRN's mscale, 0.1 mscale_all_dim ln(factor) + 1, once",
        check=lambda: close(score_scale(rope_scaling=YARN), 10**-0.5 * MSCALE),
        changed=Changed(
            now="it is multiplied in twice, once for q and once for k",
            check=lambda: close(score_scale(rope_scaling=YARN) / score_scale(), MSCALE**2),
        ),
        rows=("A4",),
    ),
    Fact(
        id="yarn-apply-mscale",
        place="R1, MLA",
        quote="mscale: yarn_apply_mscale",
        says="The function that corrects the scale is named yarn_apply_mscale",
        check=lambda: hasattr(internals("DeepseekV3"), "yarn_apply_mscale"),
        changed=Changed(
            until="5.15.0",
            now="the attention's constructor does it by itself, with yarn_get_mscale",
            check=lambda: hasattr(internals("DeepseekV3"), "yarn_get_mscale"),
        ),
    ),
    Fact(
        id="mla-unpacks",
        place="R1, MLA",
        quote="HF 实现每步都把 latent 解压成完整的 K、V 再做标准 attention",
        says="HF unpacks all latents at every step, and then does standard attention",
        check=mla_expands,
        changed=Changed(
            until="5.15.0",
            now="what was unpacked once stays unpacked in the cache",
            check=lambda: mla_cache()[1].shape[1] == 4,
        ),
        rows=("A4",),
    ),
    Fact(
        id="mla-absorbed",
        place="R1, MLA",
        quote="把 LinearKVB 合并进 Q 和 LinearOut,直接在 576 维 latent 上做 attention",
        says="With kv_b_proj folded into Q and LinearOut, attention on the latents alone gives HF's numbers",
        check=mla_absorbed,
        rows=("A5",),
    ),
    Fact(
        id="mla-no-repeat",
        place="R1, MLA",
        quote="num_key_value_heads = num_attention_heads = 128,所以 repeat_kv 的 n_rep=1",
        says="num_key_value_heads = num_attention_heads = 128, so repeat_kv repeats nothing",
        check=lambda: default("DeepseekV3", "num_key_value_heads") == default("DeepseekV3", "num_attention_heads") == 128
        and published_mla().num_key_value_groups == 1,
        rows=("A4",),
    ),
)

# --- LlamaAttention, Qwen3Attention ---


def rotated(seen: Any, norm: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys (both rotated; normed before where asked) and values of a Llama-like attention's input."""
    a, x = seen.module, seen.x
    q, k, v = (seed.heads(proj(x), n) for proj, n in ((a.q_proj, 4), (a.k_proj, 2), (a.v_proj, 2)))
    if norm:
        q = seed.rms_norm(q, a.q_norm.weight, a.q_norm.variance_epsilon)
        k = seed.rms_norm(k, a.k_norm.weight, a.k_norm.variance_epsilon)
    return *(seed.rope(y, *seen.kwargs["position_embeddings"]) for y in (q, k)), v  # pyright: ignore[reportReturnType]


def llama_like(family: str, norm: bool = False) -> bool:
    """RoPE, Repeat, softmax and LinearOut as the seed writes them."""
    (seen,) = watch(model(family), "layers.0.self_attn", input_ids=ids(6))
    q, k, v = rotated(seen, norm)
    y = seed.attention(q, *(z.repeat_interleave(2, 1) for z in (k, v)), seed.causal(6))
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
        rows=("A6",),
    ),
    Fact(
        id="llama-attention-bias",
        place="R1, LlamaAttention",
        quote="attention_bias=False:所有 Linear 都没有 bias",
        says="attention_bias is False, and no Linear of it has a bias",
        check=lambda: default("Llama", "attention_bias") is False and not biases(model("Llama").layers[0].self_attn),
        rows=("A6",),
    ),
    Fact(
        id="llama-attention-dropout",
        place="R1, LlamaAttention",
        quote="attention_dropout=0.0:没有 Dropout",
        says="attention_dropout is 0.0: training computes what evaluation does",
        check=lambda: default("Llama", "attention_dropout") == 0.0
        and close(*(run(m, input_ids=ids(6)).last_hidden_state for m in (model("Llama").train(), model("Llama")))),
        rows=("A6",),
    ),
    Fact(
        id="llama-order",
        place="R1, LlamaAttention",
        quote="先 RoPE,再写入 KV Cache(cache.update),再 repeat_kv",
        says="RoPE comes before the cache, and the cache before repeat_kv",
        check=cached_before_repeat,
        rows=("A6", "G1"),
    ),
)

QWEN3_FACTS = (
    Fact(
        id="qwen3-attention",
        place="R1, Qwen3Attention",
        quote="RoPE(RMSNorm(LinearQ(x)))",
        says="Qwen3Attention norms q and k, then rotates, then attends as Llama does",
        check=lambda: llama_like("Qwen3", norm=True),
        rows=("A7",),
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
        rows=("A7",),
    ),
    Fact(
        id="qwen3-norm-before-rope",
        place="R1, Qwen3Attention",
        quote="位于 RoPE 之前",
        says="They come before RoPE: the cached keys are RoPE(RMSNorm(k))",
        check=lambda: cached_before_repeat("Qwen3", norm=True),
        rows=("A7",),
    ),
    Fact(
        id="qwen3-norm-bounds",
        place="R1, Qwen3Attention",
        quote="用来抑制 attention logits 过大",
        says="QK-norm bounds the scores, by sqrt(d_k) with unit weights, whatever the input",
        check=normed_scores_bounded,
        rows=("A7",),
    ),
    Fact(
        id="qwen2-biases",
        place="R1, Qwen3Attention",
        quote="Qwen2 的 q/k/v_proj 带 bias",
        says="Qwen2's q_proj, k_proj and v_proj have a bias, and o_proj has none",
        check=qwen2_biases,
        rows=("A7",),
    ),
    Fact(
        id="qwen3-no-bias",
        place="R1, Qwen3Attention",
        quote="Qwen3 去掉了(attention_bias=False)",
        says="Qwen3 has none: attention_bias is False",
        check=lambda: default("Qwen3", "attention_bias") is False and not biases(model("Qwen3").layers[0].self_attn),
        rows=("A7",),
    ),
    Fact(
        id="qwen3-head-dim",
        place="R1, Qwen3Attention",
        quote="head_dim 是独立配置项(默认 128)",
        says="head_dim is 128 by default, whatever d_model / head is",
        check=lambda: default("Qwen3", "head_dim") == 128
        and internals("Qwen3").Qwen3Config(hidden_size=24, num_attention_heads=4).head_dim == 128,
        rows=("A7",),
    ),
    Fact(
        id="qwen3-head-dim-free",
        place="R1, Qwen3Attention",
        quote="不一定等于 d_model / head",
        says="It need not be d_model / head: projections are head * head_dim wide",
        check=gives((24, 4 * 8), lambda: sizes(model("Qwen3").layers[0].self_attn.q_proj)),
        rows=("A7",),
    ),
    Fact(
        id="qwen3-window-off",
        place="R1, Qwen3Attention",
        quote="当 use_sliding_window=True 时",
        says="Without use_sliding_window, which is False, sliding_window means nothing",
        check=lambda: default("Qwen3", "use_sliding_window") is False
        and config("Qwen3", sliding_window=3, max_window_layers=0).sliding_window is None,
        rows=("A7",),
    ),
    Fact(
        id="qwen3-window",
        place="R1, Qwen3Attention",
        quote="第 max_window_layers 层之后的层使用 sliding_window 大小的滑动窗口掩码",
        says="From layer max_window_layers on, a query sees sliding_window keys, itself included",
        check=qwen3_window,
        rows=("A7",),
    ),
)

FACTS = (*MHA_FACTS, *CROSS_FACTS, *GQA_FACTS, *MLA_FACTS, *LLAMA_FACTS, *QWEN3_FACTS)
