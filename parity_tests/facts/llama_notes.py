"""R2, "Transformer 架构详解:以 LLaMA 为例"; what it shares with R1 stands there, with both places."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity_tests.facts import formulas as seed
from parity_tests.facts.layers import same_layer
from parity_tests.facts.models import gpt2_head, gpt2_input, mlm_head, small_transformer
from parity_tests.facts.record import Changed, Fact, default, gives, raises
from parity_tests.facts.subjects import biases, close, filled, ids, model, over, run, values, watch
from parity_tests.harness.hf import Absent, cache_of

# --- 1. embeddings and attention ---


def initial() -> bool:
    """torch: uniform within Xavier's bound, and up to it. BERT: normal with standard deviation 0.02."""
    from transformers import BertConfig, BertModel

    with torch.random.fork_rng():
        torch.manual_seed(0)
        torchs = nn.MultiheadAttention(64, 4).in_proj_weight.detach()
        config = BertConfig(vocab_size=8, hidden_size=96, num_hidden_layers=1, num_attention_heads=4, intermediate_size=8)
        query = BertModel(config).encoder.layer[0].attention.self.query.weight.detach()
    bound = (6 / (64 + 3 * 64)) ** 0.5
    assert 0.99 * bound < torchs.abs().max() <= bound, f"torch's reach is {float(torchs.abs().max()):.3f}, not {bound:.3f}"
    assert query.abs().max() > 3 * 0.02, "BERT's weights have no tails"
    return close(query.std(), 0.02, bar=0.03)


def one_head() -> tuple[Any, Tensor]:
    return filled(nn.MultiheadAttention(12, 1, batch_first=True)), values("x", 1, 4, 12)


def own_key_left_out() -> bool:
    """b_1 as the seed words it: q_1 against k_2, k_3, k_4."""
    mha, x = one_head()
    return close(mha(x, x, x)[0][:, 0], mha(x[:, :1], x[:, 1:], x[:, 1:])[0][:, 0])


def divided_by(width: int) -> bool:
    """Whether an MHA of 12 in 3 heads divides its scores by the root of `width`."""
    mha, x = filled(nn.MultiheadAttention(12, 3, batch_first=True)), values("x", 1, 4, 12)
    q, k, v = (seed.heads(part, 3) for part in F.linear(x, mha.in_proj_weight, mha.in_proj_bias).chunk(3, -1))
    return close(mha(x, x, x)[0], mha.out_proj(seed.joined(seed.attention(q, k, v, scale=width**-0.5))))


def unscaled(**scale: float) -> bool:
    q, k, v = (values(name, 1, 2, 5, 8) for name in "qkv")
    return close(F.scaled_dot_product_attention(q, k, v, **scale), (q @ k.mT).softmax(-1) @ v)


def heads_in_parallel() -> bool:
    """Three heads of their own, b_(i,h) as [d_k], put side by side and multiplied by W^O."""
    mha, x = filled(nn.MultiheadAttention(12, 3, batch_first=True)), values("x", 1, 4, 12)
    parts = []
    for rows in (slice(0, 4), slice(4, 8), slice(8, 12)):
        q, k, v = (
            F.linear(x, w[rows], b[rows]) for w, b in zip(mha.in_proj_weight.chunk(3), mha.in_proj_bias.chunk(3), strict=True)
        )
        parts.append(seed.attention(q, k, v))
    assert all(part.shape == (1, 4, 12 // 3) for part in parts)
    return close(mha(x, x, x)[0], mha.out_proj(torch.cat(parts, -1)))


def unmixed_without_out() -> bool:
    """With W^O = 1, new values in one head change that head's four features and no other."""
    mha, x = filled(nn.MultiheadAttention(12, 3, batch_first=True)), values("x", 1, 4, 12)
    mha.out_proj.weight.copy_(torch.eye(12))
    before = mha(x, x, x)[0]
    mha.in_proj_weight[24 + 4 : 24 + 8] += 1
    return ((mha(x, x, x)[0] - before).abs().amax((0, 1)) > 0).tolist() == [False] * 4 + [True] * 4 + [False] * 4


# --- 1.4 norms ---


def standard(x: Tensor, *axes: int) -> bool:
    """Mean 0 and variance 1 over these axes."""
    return float(x.mean(axes).abs().max()) < 1e-9 and close(x.var(axes, correction=0), torch.ones_like(x.mean(axes)), bar=1e-4)


def normed(of: nn.Module, x: Tensor) -> Tensor:
    return of.double()(x).detach()


IMAGES = values("images", 4, 3, 5, 6) + 1
TOKENS = values("tokens", 9, 12) + 1

BASICS = (
    Fact(
        id="embedding-shape",
        place="R2, 1.1 词嵌入",
        quote="Embedding 输出通常为形状 [batch_size, seq_len, embedding_dim]",
        says="An embedding's output is (batch, seq, width): 4 words of width 512 are (4, 512)",
        check=lambda: nn.Embedding(9, 512)(torch.arange(4)).shape == (4, 512)
        and nn.Embedding(9, 5)(ids(4, rows=2) % 9).shape == (2, 4, 5),
    ),
    Fact(
        id="input-is-sum",
        place="R2, 1.1 词嵌入",
        quote="输入向量 = 初始化 Word Embedding + 位置编码 Position Embedding",
        says="The input is word embedding + position embedding (GPT-2)",
        check=gpt2_input,
        rows=("P3",),
    ),
    Fact(
        id="qkv-initialisation",
        place="R2, 1.1 注意力机制",
        quote="QKV 的初始化通常使用 Xavier 初始化或正态分布",
        says="Q, K and V begin as Xavier has it (torch) or as a normal distribution (HF: 0.02)",
        check=initial,
        rows=("A1",),
    ),
    Fact(
        id="own-key",
        place="R2, 1.1 注意力机制",
        quote="因此我们需要用 \\(q_1\\) 和 \\(k_2,k_3,k_4\\) 进行匹配计算注意力分数",
        says="b_1 comes of q_1 matched with k_2, k_3, k_4",
        check=own_key_left_out,
        changed=Changed(
            now="a token attends to itself too: q_1 is matched with k_1 as well",
            check=lambda: bool((one_head()[0](*[one_head()[1]] * 3)[1].diagonal(dim1=1, dim2=2) > 0).all()),
            package="torch",
        ),
        rows=("A1",),
    ),
    Fact(
        id="scale-by-embedding",
        place="R2, 1.1 注意力机制",
        quote="\\(d\\) 是之前的embedding纬度度，除以 \\(\\sqrt(d)\\)",
        says="Scores are divided by the root of the embedding's width",
        check=lambda: divided_by(12),
        changed=Changed(
            now="by the root of a head's width, d_model / H, which is the same with one head only",
            check=lambda: divided_by(4),
            package="torch",
        ),
        rows=("A1",),
    ),
    Fact(
        id="probabilities-sum",
        place="R2, 1.1 注意力机制",
        quote="进行一个softmax标准化，使得概率和为1",
        says="After softmax a token's weights add up to 1",
        check=lambda: close(one_head()[0](*[one_head()[1]] * 3)[1].sum(-1), torch.ones(1, 4)),
        rows=("A1",),
    ),
    Fact(
        id="attention-without-scale",
        place="R2, 1.1 注意力机制",
        quote="A &= QK^T \\\\ \\hat{A} &= Softmax(A) \\\\ O &= \\hat{A}V",
        says="In matrices: A = QK^T, then Softmax(A) V, without a factor",
        check=unscaled,
        changed=Changed(
            now="torch divides A by sqrt(d_k), and computes what is written with scale=1 only",
            check=lambda: unscaled(scale=1.0),
            package="torch",
        ),
        rows=("A1",),
    ),
    Fact(
        id="heads-concatenated",
        place="R2, 1.2",
        quote="先每个head分别计算出一个\\(b_{i,h}\\)，随后进行多头注意力输出的拼接",
        says="Each head computes its b_(i,h), as [d_model / H]; they are concatenated, then multiplied by W^O",
        check=heads_in_parallel,
        rows=("A1",),
    ),
    Fact(
        id="out-mixes-heads",
        place="R2, 1.2",
        quote="我们需要 一个额外的线性变换进行信息融合",
        says="Without W^O a feature of the output comes of one head alone",
        check=unmixed_without_out,
        rows=("A1",),
    ),
    Fact(
        id="norm-standardises",
        place="R2, 1.4",
        quote="将数据转换为均值为 0，方差为 1",
        says="Norms make mean 0 and variance 1, as long as eps and the weights are left aside",
        check=lambda: standard(normed(nn.LayerNorm(12), TOKENS), 1) and standard(normed(nn.BatchNorm1d(12), TOKENS), 0),
        rows=("N1",),
    ),
    Fact(
        id="layer-norm-axis",
        place="R2, 1.4",
        quote="此处就等于对每个词，提取出所有feature做一个正则化",
        says="LayerNorm norms all features of one word (of one sample N): no other word matters",
        check=lambda: standard(normed(nn.LayerNorm([3, 5, 6]), IMAGES), 1, 2, 3)
        and torch.equal(normed(nn.LayerNorm(12), TOKENS)[:1], normed(nn.LayerNorm(12), TOKENS[:1])),
        rows=("N1",),
    ),
    Fact(
        id="batch-norm-axis",
        place="R2, 1.4",
        quote="此处就等于对每个feature，提取所有词的这个feature做一次正则化",
        says="BatchNorm norms one feature (channel C) over all words: the others matter",
        check=lambda: standard(normed(nn.BatchNorm2d(3), IMAGES), 0, 2, 3)
        and not torch.allclose(normed(nn.BatchNorm1d(12), TOKENS)[:5], normed(nn.BatchNorm1d(12), TOKENS[:5]), rtol=0.1),
        rows=("N1",),
    ),
)

# --- 2. encoder and decoder ---


def stackable() -> bool:
    """(seq, d_model) in and out, so that blocks can be stacked; the last one's output is the memory."""
    net, src = small_transformer(), values("src", 1, 7, 12)
    layers = watch(net, "encoder.layers.0", "encoder.layers.1", src=src, tgt=src)
    return all(layer.y.shape == src.shape for layer in layers) and torch.equal(layers[1].x, layers[0].y)


def one_memory() -> bool:
    """Each decoder block's cross-attention gets the encoder's last output as key and value, and its own query."""
    net, src, tgt = small_transformer(), values("src", 1, 7, 12), values("tgt", 1, 5, 12)
    encoder, *crosses = watch(
        net, "encoder", "decoder.layers.0.multihead_attn", "decoder.layers.1.multihead_attn", src=src, tgt=tgt
    )
    given = [(seen.args + tuple(seen.kwargs.values()))[:3] for seen in crosses]
    assert not torch.equal(given[0][0], given[1][0]), "both blocks ask alike"
    return all(torch.equal(key, encoder.y) and torch.equal(value, encoder.y) for _, key, value in given)


def mask_before_softmax() -> bool:
    """Nothing above the diagonal, and what is left adds up to 1, which masking after softmax would not leave."""
    probs = run(model("GPT2"), input_ids=ids(5), output_attentions=True).attentions[0]
    return not probs.triu(1).any() and close(probs.sum(-1), torch.ones(1, 4, 5))


def greedy(net: Any, n: int, eos: int | None = None) -> list[int]:
    """Token by token: Linear, Softmax, the most probable; until it is `eos`."""
    tokens = ids(4)
    for _ in range(n):
        best = run(net, input_ids=tokens).logits[:, -1].softmax(-1).argmax(-1)
        tokens = torch.cat([tokens, best[:, None]], -1)
        if int(best) == eos:
            break
    return tokens[0].tolist()


def generated(net: Any, n: int, **options: Any) -> list[int]:
    from parity_tests.harness.lens import Lens

    net.generation_config.pad_token_id = 0
    with torch.no_grad(), Lens():
        out = net.generate(input_ids=ids(4), attention_mask=torch.ones(1, 4).long(), max_new_tokens=n, **options)
    return out[0].tolist()


def stops_at_end() -> bool:
    net = model("Llama", "ForCausalLM")
    free = greedy(net, 6)
    end = free[6]  # the third new token is made the end
    stopped = generated(net, 6, eos_token_id=end)
    assert len(stopped) < len(free), "it goes on"
    return stopped == greedy(net, 6, eos=end)


STRUCTURE = (
    Fact(
        id="encoder-stack",
        place="R2, 2.2",
        quote="多个 Block 叠加后，最终生成 编码信息矩阵 C，这一矩阵会被 Decoder 进一步利用",
        says="Encoder blocks take and give (seq, d_model), and are stacked",
        check=stackable,
        rows=("M1",),
    ),
    Fact(
        id="decoder-blocks-share-memory",
        place="R2, 2.3",
        quote="Self-Attention 的 K, V 矩阵不是使用 上一个 Decoder block 的输出计算的，而是使用 Encoder 的编码信息矩阵 C 计算的",
        says="In every decoder block the second MHA has its K and V from the encoder's output",
        check=one_memory,
        rows=("M1", "L2"),
    ),
    Fact(
        id="mask-before-softmax",
        place="R2, 2.3",
        quote="QK计算 -> Mask -> Softmax -> V计算",
        says="The order is Q K, mask, softmax, V",
        check=mask_before_softmax,
        rows=("A1",),
    ),
    Fact(
        id="head-weight",
        place="R2, 2.4",
        quote="\\(W\\) 的形状：\\(R^{V×d_{model}}\\)",
        says="The last Linear's W is (V, d_model)",
        check=gives((37, 24), lambda: tuple(model("Llama", "ForCausalLM").lm_head.weight.shape)),
        rows=("M4",),
    ),
    Fact(
        id="head-bias",
        place="R2, 2.4",
        quote="\\(b\\) 的形状：\\(R^{L}\\)",
        says="Its b is of shape (L,), the number of tokens",
        check=lambda: not raises(RuntimeError, lambda: F.linear(values("o", 5, 24), values("w", 37, 24), values("b", 5))),
        changed=Changed(
            now="it is (V,): one a word, the same for every token; and Llama's has none",
            check=lambda: F.linear(values("o", 5, 24), values("w", 37, 24), values("b", 37)).shape == (5, 37)
            and nn.Linear(24, 37).bias.shape == (37,)
            and not biases(model("Llama", "ForCausalLM").lm_head),
            package="torch",
        ),
        rows=("M1", "M4"),
    ),
    Fact(
        id="logits-shape",
        place="R2, 2.4",
        quote="\\(Z\\) 的形状：\\(R^{L×V}\\)",
        says="The logits are (L, V)",
        check=gives((1, 5, 37), lambda: tuple(run(model("Llama", "ForCausalLM"), input_ids=ids(5)).logits.shape)),
        rows=("M4",),
    ),
    Fact(
        id="greedy-choice",
        place="R2, 2.4",
        quote="Decoder 选择概率最高的单词作为输出，不断迭代",
        says="Unless told otherwise generate takes the most probable word, again and again",
        check=lambda: generated(net := model("Llama", "ForCausalLM"), 6, eos_token_id=None) == greedy(net, 6),
        rows=("G1",),
    ),
    Fact(
        id="stops-at-eos",
        place="R2, 2.4",
        quote="直到生成结束标记（<EOS>）",
        says="It stops once that is the end-of-sequence token",
        check=stops_at_end,
        rows=("G1",),
    ),
)

# --- 3. training, inference, Llama ---


def shifted_loss() -> bool:
    """labels = input_ids: token i + 1 is what position i has to predict."""
    net = model("Llama", "ForCausalLM")
    out = run(net, input_ids=ids(6), labels=ids(6))
    return close(out.loss, F.cross_entropy(out.logits[0, :-1], ids(6)[0, 1:]), bar=1e-6)


def parallel_is_stepwise() -> bool:
    net = model("Llama", "ForCausalLM")
    whole = run(net, input_ids=ids(6)).logits[0]
    return all(close(run(net, input_ids=ids(6)[:, : n + 1]).logits[0, -1], whole[n]) for n in range(6))


def cached_is_uncached() -> bool:
    net = model("Llama", "ForCausalLM")
    whole = run(net, input_ids=ids(6)).logits
    first = run(net, input_ids=ids(6)[:, :3], use_cache=True)
    rest = run(net, input_ids=ids(6)[:, 3:], **over(cache_of(first), net))
    return close(torch.cat([first.logits, rest.logits], 1), whole) and generated(net, 6, use_cache=True) == generated(
        net, 6, use_cache=False
    )


def kinds() -> dict[str, tuple[bool, bool]]:
    """Encoder and decoder both? And does a model keep the future from the past?"""
    found = {}
    for family in ("Bert", "GPT2"):
        net = model(family)
        first, other = (run(net, input_ids=tokens).last_hidden_state[:, 0] for tokens in (ids(5), ids(5)[:, :4]))
        found[family] = (net.config.is_encoder_decoder, torch.allclose(first, other, rtol=1e-9))
    return found


def encoder_decoders() -> list[bool]:
    from transformers import BartConfig, MarianConfig, T5Config

    return [config().is_encoder_decoder for config in (T5Config, BartConfig, MarianConfig)]


def prefix_kept(family: str) -> bool:
    """Whether the states of five tokens are the same once a sixth follows."""
    net = model(family)
    longer, shorter = (run(net, input_ids=tokens).last_hidden_state[:, :5] for tokens in (ids(6), ids(6)[:, :5]))
    return torch.allclose(longer, shorter, rtol=1e-9)


def smooth_at_zero() -> bool:
    """The derivative just left and just right of 0."""

    def slopes(of: Any) -> Tensor:
        x = torch.tensor([-1e-6, 1e-6], dtype=torch.float64, requires_grad=True)
        return torch.autograd.grad(of(x).sum(), x)[0]

    return float(slopes(F.relu).diff()) == 1.0 and abs(float(slopes(F.silu).diff())) < 1e-5


def norm_before_head(model_of: Any) -> bool:
    return isinstance(model_of.decoder.norm, nn.LayerNorm)


LLAMA = (
    Fact(
        id="next-token-targets",
        place="R2, 3.1",
        quote="目标序列（需要预测的单词）：[\"like\", \"apples\", \"<END>\"]",
        says="Position i is trained to predict token i + 1: HF shifts the labels",
        check=shifted_loss,
        rows=("G1",),
    ),
    Fact(
        id="parallel-training",
        place="R2, 3.1",
        quote="一次性输入整个句子作为 Input，随后使用 Mask 机制 模拟未知后续序列的情况",
        says="One masked pass gives every position what it would get from its prefix alone",
        check=parallel_is_stepwise,
        rows=("G1", "M1"),
    ),
    Fact(
        id="kv-cache-harmless",
        place="R2, 3.1",
        quote="KV Cache（键值缓存），因为它 不会影响生成质量",
        says="A KV cache changes neither logits nor generated tokens",
        check=cached_is_uncached,
        rows=("G1",),
    ),
    Fact(
        id="encoder-only",
        place="R2, 3.2",
        quote="Encoder-Only（以 BERT 为代表）",
        says="BERT is an encoder: no decoder, and the first token sees the last",
        check=lambda: kinds()["Bert"] == (False, False),
        rows=("M2",),
    ),
    Fact(
        id="encoder-decoder",
        place="R2, 3.2",
        quote="Encoder-Decoder（以 T5 和 BART 为代表）",
        says="T5 and BART (and Marian) are encoder and decoder",
        check=gives([True, True, True], encoder_decoders),
        rows=("M5",),
    ),
    Fact(
        id="decoder-only",
        place="R2, 3.2",
        quote="Decoder-Only（以 GPT 系列 为代表）",
        says="GPT-2 is a decoder: no encoder, and no token sees a later one",
        check=lambda: kinds()["GPT2"] == (False, True),
        rows=("M3",),
    ),
    Fact(
        id="prefix-reusable",
        place="R2, 3.2",
        quote="每个 Token 的表示之和它之前的输入有关",
        says="In decoders a token's state depends on what precedes it, so a cache can be kept; not in encoders",
        check=lambda: prefix_kept("GPT2") and prefix_kept("Llama") and not prefix_kept("Bert"),
        rows=("G1",),
    ),
    Fact(
        id="llama-decoder-only",
        place="R2, 3.3",
        quote="它采用 Decoder-Only 结构",
        says="Llama is a decoder",
        check=lambda: not default("Llama", "is_encoder_decoder") and prefix_kept("Llama"),
        rows=("M4",),
    ),
    Fact(
        id="silu-smooth",
        place="R2, 3.3",
        quote="相比 ReLU，SwiGLU 梯度更平滑",
        says="SiLU's derivative is continuous at 0, where ReLU's jumps by 1",
        check=smooth_at_zero,
        rows=("F2",),
    ),
    Fact(
        id="norm-before-projection-elsewhere",
        place="R2, 3.3",
        quote="LLaMA 先进行归一化（Norm），再投影到词汇表，而标准 Transformer 是 Projection -> Softmax",
        says="The standard Transformer projects without a norm before",
        check=lambda: small_transformer().decoder.norm is None,
        changed=Changed(
            now="nn.Transformer's decoder ends in a LayerNorm, and GPT-2 has ln_f before its head",
            check=lambda: norm_before_head(small_transformer()) and gpt2_head(),
            package="torch",
        ),
        rows=("M1", "M3"),
    ),
)

# --- 4. the mini-LLaMA ---


def package(name: str) -> Any:
    """A package that the notes use. Errors: Absent."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Absent(f"the package {name.replace('_', '-')} is not installed") from error


def notes_rope() -> tuple[Tensor, Tensor, Tensor]:
    """q, what the notes make of it, and what adjacent pairs turned by position would be."""
    rope, q = package("rotary_embedding_torch").RotaryEmbedding(dim=8), values("q", 1, 2, 5, 8).float()
    angle = seed.angles(torch.arange(5), 10000.0, 8).repeat_interleave(2, -1).float()
    return q, rope(q)[:, :, :, :, 0].detach(), q * angle.cos() + seed.rotate_every_two(q) * angle.sin()


def packaged_rotation() -> Tensor:
    rope = package("rotary_embedding_torch").RotaryEmbedding(dim=8)
    return rope.rotate_queries_or_keys(values("q", 1, 2, 5, 8).float()).detach()


def packaged_norm() -> bool:
    norm = package("x_transformers").RMSNorm(12).double()
    weight = next(iter(norm.parameters()))
    with torch.no_grad():
        weight.copy_(1 + values("norm weight", 12) / 4)
        return close(norm(TOKENS), seed.rms_norm(TOKENS, weight, 0.0))


def batched_product() -> bool:
    q, k = values("q", 2, 3, 5, 4), values("k", 2, 3, 5, 4)
    pairs = [[q[b, h] @ k[b, h].T for h in range(3)] for b in range(2)]
    return close(q @ k.transpose(-2, -1), torch.stack([torch.stack(rows) for rows in pairs]))


def masked_scores() -> bool:
    """[B, T, T] -> [B, 1, T, T], spread over the heads; what is -inf gets no weight."""
    scores, mask = values("scores", 2, 3, 5, 5), torch.stack([seed.causal(5), torch.ones(5, 5, dtype=torch.bool)])
    probs = F.softmax(scores.masked_fill(mask.unsqueeze(1) == 0, float("-inf")), dim=-1)
    spread = (~mask.unsqueeze(1)).expand(2, 3, 5, 5)
    return torch.equal(probs == 0, spread) and close(probs.sum(-1), torch.ones(2, 3, 5))


def needs_contiguous() -> bool:
    x = values("x", 2, 3, 5, 4)  # (B, heads, T, head_dim)
    refused = raises(RuntimeError, lambda: x.transpose(1, 2).view(2, 5, -1))
    return refused and torch.equal(x.transpose(1, 2).contiguous().view(2, 5, -1), seed.joined(x))


def norm_behind_sublayers() -> bool:
    """x + RMSNorm(Attention(x)), as the code's comment orders it."""
    layer, norm, attention = watch(
        model("Llama"), "layers.0", "layers.0.input_layernorm", "layers.0.self_attn", input_ids=ids(5)
    )
    assert torch.equal(norm.x, attention.y), "the norm is fed what goes into the attention"
    return torch.equal(attention.kwargs.get("hidden_states", attention.x), layer.x)


def head_after_norm() -> bool:
    """GPT-2's and BERT's last step is the projection, of what a LayerNorm gave."""
    return gpt2_head() and mlm_head()


def projects_last() -> bool:
    """Whether GPT-2's logits are LayerNorm's output: mean 0 and variance 1 over the vocabulary, up to its weights."""
    net = model("GPT2", "LMHeadModel")
    modules = [m for m in net.modules() if isinstance(m, nn.LayerNorm)]
    return any(m.normalized_shape == (net.config.vocab_size,) for m in modules)


MINI = (
    Fact(
        id="notes-rope",
        place="R2, 4.1",
        quote="q = self.rope(q)[:, :, :, :, 0]",
        says="rotary-embedding-torch's rope(q)[..., 0] rotates q by its positions",
        check=lambda: close(notes_rope()[1], notes_rope()[2], bar=1e-5),
        changed=Changed(
            now="it gives q back untouched; rotate_queries_or_keys(q) rotates",
            check=lambda: torch.equal(notes_rope()[1], notes_rope()[0])
            and close(packaged_rotation(), notes_rope()[2], bar=1e-5),
            package="rotary-embedding-torch",
        ),
        rows=("M6", "P4"),
    ),
    Fact(
        id="notes-rms-norm",
        place="R2, 4",
        quote="RMSNorm归一化：x_transformers.RMSNorm",
        says="x-transformers' RMSNorm is RMSNorm (without an eps)",
        check=packaged_norm,
        rows=("M6", "N1"),
    ),
    Fact(
        id="batched-product",
        place="R2, 4.1",
        quote="QK计算，使用BMM，只对后两个维度做乘法",
        says="q @ k.transpose(-2, -1) multiplies over the last two axes, for each row and head",
        check=batched_product,
        rows=("M6",),
    ),
    Fact(
        id="mask-broadcast",
        place="R2, 4.1",
        quote="[B, T, T]扩展到 [B, 1, T, T]，自动broadcast到 [B, num_heads, T, T]",
        says="A mask (B, T, T), unsqueezed, is spread over the heads, and -inf gets no weight",
        check=masked_scores,
        rows=("M6",),
    ),
    Fact(
        id="contiguous-before-view",
        place="R2, 4.1",
        quote="确保存储方式改变 -> 自动合并reshape",
        says="After transpose, view needs contiguous",
        check=needs_contiguous,
        rows=("M6",),
    ),
    Fact(
        id="notes-mlp-width",
        place="R2, 4.2",
        quote="hidden_dim = hidden_dim or 4 * dim",
        says="The MLP of a LLaMA with SwiGLU is 4 d_model wide",
        check=lambda: default("Llama", "intermediate_size") == 4 * default("Llama", "hidden_size"),
        changed=Changed(
            now="that is the ReLU FFN's width; Llama's three matrices are 8/3 d_model wide (11008 of 4096)",
            check=lambda: 8 / 3 <= default("Llama", "intermediate_size") / default("Llama", "hidden_size") < 2.7,
        ),
        rows=("M6", "F2"),
    ),
    Fact(
        id="notes-block-comment",
        place="R2, 4.3",
        quote="# Attention -> RMSNorm -> Residual -> MLP -> RMSNorm -> Residual",
        says="A LLaMA block goes attention, RMSNorm, residual, MLP, RMSNorm, residual",
        check=norm_behind_sublayers,
        changed=Changed(
            now="RMSNorm comes first, as the code below that comment has it: RMSNorm, attention, residual, …",
            check=lambda: same_layer("Llama"),
        ),
        rows=("M6", "L5"),
    ),
    Fact(
        id="notes-projection-then-norm",
        place="R2, 4.6",
        quote="标准 Transformer（如 GPT、BERT）采用 final_proj -> LayerNorm 结构",
        says="GPT and BERT project first and norm then",
        check=projects_last,
        changed=Changed(
            now="both norm first: ln_f, then GPT-2's head; LayerNorm, then BERT's decoder",
            check=head_after_norm,
        ),
        rows=("M2", "M3"),
    ),
    Fact(
        id="head-no-bias",
        place="R2, 4.6",
        quote="self.final_proj = nn.Linear(dim, vocab_size, bias=False)",
        says="Llama's last projection has no bias",
        check=lambda: not biases(model("Llama", "ForCausalLM").lm_head),
        rows=("M4", "M6"),
    ),
)

FACTS = (*BASICS, *STRUCTURE, *LLAMA, *MINI)
