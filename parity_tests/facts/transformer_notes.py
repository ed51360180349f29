"""R2, 1 and 2: attention, norms, encoder and decoder. What R2 shares with R1 stands there, with both places."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity_tests.facts import formulas as seed
from parity_tests.facts.models import gpt2_input, small_transformer
from parity_tests.facts.record import Changed, Fact, gives, raises, released
from parity_tests.facts.subjects import biases, close, config, filled, ids, model, run, values, watch
from parity_tests.harness.lens import Lens

# --- 1. embeddings and attention ---


def initial() -> bool:
    """torch: uniform within Xavier's bound, and up to it. BERT: normal with standard deviation 0.02."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torchs = nn.MultiheadAttention(64, 4).in_proj_weight.detach()
        bert = released("BertModel")(config("Bert", hidden_size=96))
        query = bert.encoder.layer[0].attention.self.query.weight.detach()
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


def unscaled(scale: float | None = None) -> bool:
    q, k, v = (values(name, 1, 2, 5, 8) for name in "qkv")
    return close(F.scaled_dot_product_attention(q, k, v, scale=scale), (q @ k.mT).softmax(-1) @ v)


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
    ),
    Fact(
        id="qkv-initialisation",
        place="R2, 1.1 注意力机制",
        quote="QKV 的初始化通常使用 Xavier 初始化或正态分布",
        says="Q, K and V begin as Xavier has it (torch) or as a normal distribution (HF: 0.02)",
        check=initial,
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
    ),
    Fact(
        id="probabilities-sum",
        place="R2, 1.1 注意力机制",
        quote="进行一个softmax标准化，使得概率和为1",
        says="After softmax a token's weights add up to 1",
        check=lambda: close(one_head()[0](*[one_head()[1]] * 3)[1].sum(-1), torch.ones(1, 4)),
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
    ),
    Fact(
        id="heads-concatenated",
        place="R2, 1.2",
        quote="先每个head分别计算出一个\\(b_{i,h}\\)，随后进行多头注意力输出的拼接",
        says="Each head computes its b_(i,h), as [d_model / H]; they are concatenated, then multiplied by W^O",
        check=heads_in_parallel,
    ),
    Fact(
        id="out-mixes-heads",
        place="R2, 1.2",
        quote="我们需要 一个额外的线性变换进行信息融合",
        says="Without W^O a feature of the output comes of one head alone",
        check=unmixed_without_out,
    ),
    Fact(
        id="norm-standardises",
        place="R2, 1.4",
        quote="将数据转换为均值为 0，方差为 1",
        says="Norms make mean 0 and variance 1, as long as eps and the weights are left aside",
        check=lambda: standard(normed(nn.LayerNorm(12), TOKENS), 1) and standard(normed(nn.BatchNorm1d(12), TOKENS), 0),
    ),
    Fact(
        id="layer-norm-axis",
        place="R2, 1.4",
        quote="此处就等于对每个词，提取出所有feature做一个正则化",
        says="LayerNorm norms all features of one word (of one sample N): no other word matters",
        check=lambda: standard(normed(nn.LayerNorm([3, 5, 6]), IMAGES), 1, 2, 3)
        and torch.equal(normed(nn.LayerNorm(12), TOKENS)[:1], normed(nn.LayerNorm(12), TOKENS[:1])),
    ),
    Fact(
        id="batch-norm-axis",
        place="R2, 1.4",
        quote="此处就等于对每个feature，提取所有词的这个feature做一次正则化",
        says="BatchNorm norms one feature (channel C) over all words: the others matter",
        check=lambda: standard(normed(nn.BatchNorm2d(3), IMAGES), 0, 2, 3)
        and not torch.allclose(normed(nn.BatchNorm1d(12), TOKENS)[:5], normed(nn.BatchNorm1d(12), TOKENS[:5]), rtol=0.1),
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
    ),
    Fact(
        id="decoder-blocks-share-memory",
        place="R2, 2.3",
        quote="Self-Attention 的 K, V 矩阵不是使用 上一个 Decoder block 的输出计算的，而是使用 Encoder 的编码信息矩阵 C 计算的",
        says="In every decoder block the second MHA has its K and V from the encoder's output",
        check=one_memory,
    ),
    Fact(
        id="mask-before-softmax",
        place="R2, 2.3",
        quote="QK计算 -> Mask -> Softmax -> V计算",
        says="The order is Q K, mask, softmax, V",
        check=mask_before_softmax,
    ),
    Fact(
        id="head-weight",
        place="R2, 2.4",
        quote="\\(W\\) 的形状：\\(R^{V×d_{model}}\\)",
        says="The last Linear's W is (V, d_model)",
        check=gives((37, 24), lambda: tuple(model("Llama", "ForCausalLM").lm_head.weight.shape)),
    ),
    Fact(
        id="head-bias",
        place="R2, 2.4",
        quote="\\(b\\) 的形状：\\(R^{L}\\)",
        says="The last Linear's b is of shape (L,), L the number of tokens",
        check=lambda: not raises(RuntimeError, lambda: F.linear(values("o", 5, 24), values("w", 37, 24), values("b", 5))),
        changed=Changed(
            now="it is (V,): one a word, the same for every token; and Llama's has none",
            check=lambda: F.linear(values("o", 5, 24), values("w", 37, 24), values("b", 37)).shape == (5, 37)
            and nn.Linear(24, 37).bias.shape == (37,)
            and not biases(model("Llama", "ForCausalLM").lm_head),
            package="torch",
        ),
    ),
    Fact(
        id="logits-shape",
        place="R2, 2.4",
        quote="\\(Z\\) 的形状：\\(R^{L×V}\\)",
        says="The logits are (L, V)",
        check=gives((1, 5, 37), lambda: tuple(run(model("Llama", "ForCausalLM"), input_ids=ids(5)).logits.shape)),
    ),
    Fact(
        id="greedy-choice",
        place="R2, 2.4",
        quote="Decoder 选择概率最高的单词作为输出，不断迭代",
        says="Unless told otherwise generate takes the most probable word, again and again",
        check=lambda: generated(net := model("Llama", "ForCausalLM"), 6, eos_token_id=None) == greedy(net, 6),
    ),
    Fact(
        id="stops-at-eos",
        place="R2, 2.4",
        quote="直到生成结束标记（<EOS>）",
        says="It stops once that is the end-of-sequence token",
        check=stops_at_end,
    ),
)

FACTS = (*BASICS, *STRUCTURE)
