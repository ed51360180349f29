"""R1, "Norm 与位置编码": norms, sinusoidal and learned positions, RoPE."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from parity_tests.facts import formulas as seed
from parity_tests.facts.record import Changed, Fact, default, gives, raises
from parity_tests.facts.subjects import (
    biases,
    close,
    counted,
    filled,
    hub_config,
    ids,
    internal,
    internals,
    model,
    over,
    released,
    run,
    values,
    watch,
)
from parity_tests.harness.hf import cache_of, cached
from parity_tests.harness.lens import Lens

# --- norms ---


def rms(family: str, width: int, eps: float, dtype: torch.dtype = torch.float64) -> Any:
    """A family's RMSNorm with weights that are not 1."""
    norm = internal(family, {"T5": "T5LayerNorm"}.get(family, f"{family}RMSNorm"))(width, eps)
    norm.weight.data = 1 + values("norm weight", width).to(dtype) / 4
    return norm


def llama_norm() -> bool:
    norm, x = rms("Llama", 12, 0.01), values("x", 3, 12) / 8
    with torch.no_grad(), Lens():
        return close(norm(x), seed.rms_norm(x, norm.weight, 0.01))


def bf16() -> tuple[Any, Tensor]:
    return rms("Llama", 64, 1e-6, torch.bfloat16), (values("x", 16, 64) / 3).bfloat16()


def widened() -> bool:
    """bfloat16 in: the sum of squares and the quotient in float32, rounded back before the weight, bfloat16 out."""
    norm, x = bf16()
    wide = x.float()
    quotient = wide * torch.rsqrt((wide**2).mean(-1, keepdim=True) + 1e-6)
    narrow = x * torch.rsqrt((x**2).mean(-1, keepdim=True) + 1e-6)
    assert not torch.equal(quotient.bfloat16(), narrow), "float32 makes no difference here"
    return torch.equal(norm(x), norm.weight * quotient.bfloat16())


def same_as_t5() -> bool:
    """Bit for bit, in float32 and in bfloat16."""
    for dtype in (torch.float32, torch.bfloat16):
        x = (values("x", 16, 64) / 3).to(dtype)
        llama, t5 = (rms(family, 64, 1e-6, dtype)(x) for family in ("Llama", "T5"))
        assert torch.equal(llama, t5), f"they differ in {dtype}"
    return True


LLAMAS = ("Llama-2-7b-hf", "Llama-3.1-8B", "Llama-3.2-1B")
NORM = "R1, LayerNorm / RMSNorm"

NORM_FACTS = (
    Fact(
        id="layer-norm-formula",
        place=NORM,
        quote="LayerNorm(x) = (x - Mean(x)) * rsqrt(Var(x) + eps) * weight + bias",
        says="torch's LayerNorm computes that over the last axis, eps inside the root, Var divided by d",
        check=lambda: close(
            (norm := filled(nn.LayerNorm(12, eps=0.01)))(values("x", 3, 12) / 8), seed.layer_norm(values("x", 3, 12) / 8, norm)
        ),
        rows=("N1",),
    ),
    Fact(
        id="rms-norm-formula",
        place=NORM,
        quote="RMSNorm(x) = x * rsqrt(Mean(x^2) + eps) * weight",
        says="LlamaRMSNorm computes that, eps inside the root",
        check=llama_norm,
        rows=("N1",),
    ),
    Fact(
        id="rms-norm-no-mean",
        place=NORM + " · R2, 3.3",
        quote="RMSNorm 去掉了减均值和 bias",
        says="RMSNorm has no bias and takes off no mean: a constant added to x changes it (LayerNorm: not)",
        check=lambda: mean_matters(),
        rows=("N1",),
    ),
    Fact(
        id="rms-norm-float32",
        place=NORM,
        quote="HF LlamaRMSNorm 先转 float32 计算,再转回原 dtype",
        says="LlamaRMSNorm computes in float32 and returns the dtype that it was given",
        check=widened,
        rows=("N1",),
    ),
    Fact(
        id="rms-norm-t5",
        place=NORM,
        quote="与 T5LayerNorm 等价",
        says="It equals T5LayerNorm, bit for bit in float32 and bfloat16",
        check=same_as_t5,
        rows=("N1",),
    ),
    Fact(
        id="eps-torch",
        place=NORM,
        quote="eps: PyTorch LayerNorm 默认 1e-5",
        says="torch's LayerNorm has eps 1e-5 by default",
        check=gives(1e-5, lambda: nn.LayerNorm(3).eps),
        rows=("N1",),
    ),
    Fact(
        id="eps-bert",
        place=NORM,
        quote="BERT 为 1e-12",
        says="BERT's eps is 1e-12, and its LayerNorms have it",
        check=lambda: default("Bert", "layer_norm_eps") == 1e-12
        and {m.eps for m in model("Bert").modules() if isinstance(m, nn.LayerNorm)} == {1e-12},
        rows=("N1",),
    ),
    Fact(
        id="eps-llama",
        place=NORM,
        quote="Llama 的 rms_norm_eps 为 1e-6",
        says="Llama's rms_norm_eps is 1e-6, and its norms have it",
        check=lambda: default("Llama", "rms_norm_eps") == 1e-6 and model("Llama").norm.variance_epsilon == 1e-6,
        rows=("N1",),
    ),
    Fact(
        id="eps-llama-published",
        place=NORM,
        quote="Llama 的 rms_norm_eps 为 1e-6",
        says="So has every published Llama",
        check=lambda: {hub_config(name)["rms_norm_eps"] for name in LLAMAS} == {1e-6},
        changed=Changed(
            now="that is the configuration's default (and Llama 1's); Llama 2 and 3 are published with 1e-5",
            check=lambda: {hub_config(name)["rms_norm_eps"] for name in LLAMAS} == {1e-5},
        ),
        rows=("N1",),
    ),
)


def mean_matters() -> bool:
    x, layer, root = values("x", 3, 12), filled(nn.LayerNorm(12, eps=1e-9)), rms("Llama", 12, 1e-9)
    with torch.no_grad(), Lens():
        assert close(layer(x + 3), layer(x), bar=1e-6), "LayerNorm sees the mean"
        return not biases(root) and not torch.allclose(root(x + 3), root(x), rtol=0.1)


# --- sinusoidal positions ---


def marian_table(width: int = 24) -> Tensor:
    return model("Marian").encoder.embed_positions.weight[:, :width]


def halves() -> bool:
    """The seed's table, all sines first: one permutation apart."""
    table = seed.sinusoid(32, 24)
    assert not torch.allclose(marian_table(), table, atol=1e-3), "it interleaves"
    return close(marian_table(), torch.cat([table[:, 0::2], table[:, 1::2]], -1), bar=1e-6)


def added_once() -> bool:
    """Into the first layer goes embedding plus table; the table is read once."""
    net = model("Marian")
    tokens, table, layer = watch(
        net.encoder, "embed_tokens", "embed_positions", "layers.0", input_ids=ids(6), attention_mask=torch.ones(1, 6)
    )
    return table.times == 1 and close(layer.x, tokens.y + table.y)


def rotation() -> bool:
    """PE(pos + k) is PE(pos) with each pair (sin, cos) turned by k w_i, for all positions and several k."""
    table, width = seed.sinusoid(40, 24), 24
    for k in (1, 5):
        angle = k * seed.inv_freq(10000.0, width)
        sin, cos = table[:-k, 0::2], table[:-k, 1::2]
        turned = torch.stack([sin * angle.cos() + cos * angle.sin(), cos * angle.cos() - sin * angle.sin()], -1)
        assert close(turned.flatten(-2), table[k:])
    return True


def scaled_embedding(scale: bool) -> float:
    net = model("Marian", scale_embedding=scale)
    (layer,) = watch(net.encoder, "layers.0", input_ids=ids(6), attention_mask=torch.ones(1, 6))
    plain = net.encoder.embed_tokens.weight[ids(6)]
    return float(((layer.x - marian_table()[:6]) / plain).nanmedian())


def wavelengths(width: int) -> tuple[float, float]:
    """The shortest and the longest, from Marian's formula at this width: positions until a sine returns."""
    table = internals("Marian").MarianSinusoidalPositionalEmbedding(2, width)
    weight = table.create_weight() if hasattr(table, "create_weight") else table.weight
    omega = weight[1, : width // 2].double().asin()  # the angle of position 1
    return 2 * math.pi / float(omega[1]), 2 * math.pi / float(omega[-1])


def no_torch_positions() -> bool:
    """No class of torch.nn is one, and nn.Transformer cannot tell the order of its source."""
    named = [name for name in dir(nn) if "position" in name.lower()]
    assert not named, f"there is {named}"
    encoder = filled(nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 3, 20, batch_first=True), 2))
    x, order = values("x", 1, 5, 12), torch.tensor([3, 0, 4, 1, 2])
    return close(encoder(x[:, order]), encoder(x)[:, order])


def frozen() -> bool:
    table = released("MarianModel")(model("Marian").config).encoder.embed_positions
    return isinstance(table, nn.Embedding) and not table.weight.requires_grad


def by_position() -> bool:
    """Over a cache of 4 tokens the decoder reads rows 4 and 5 of the table."""
    net = model("Marian")
    encoded = run(net.encoder, input_ids=ids(6), attention_mask=torch.ones(1, 6)).last_hidden_state
    given = {"encoder_hidden_states": encoded, "encoder_attention_mask": torch.ones(1, 6)}
    past = cache_of(run(net.decoder, input_ids=ids(4), use_cache=True, **given))
    (table,) = watch(net.decoder, "embed_positions", input_ids=ids(2), **over(past, net.decoder), **given)
    return torch.equal(table.y.reshape(2, 24), table.module.weight[4:6])


SIN = "R1, Sinusoidal PE"

SINUSOIDAL_FACTS = (
    Fact(
        id="sinusoid-once",
        place=SIN,
        quote="加法式:只在输入处与 TokenEmbedding 相加一次,之后的层不再注入位置信息",
        says="The table is added to the embeddings once, at the input, and read no more",
        check=added_once,
        rows=("P2",),
    ),
    Fact(
        id="sinusoid-not-learned",
        place=SIN,
        quote="没有可学习的参数",
        says="It has nothing to learn: a Marian that is being trained leaves its table alone",
        check=lambda: not any(
            p.requires_grad for n, p in released("MarianModel")(model("Marian").config).named_parameters() if "positions" in n
        ),
        rows=("P2",),
    ),
    Fact(
        id="sinusoid-wavelengths",
        place=SIN,
        quote="波长从2π2\\pi 到10000⋅2π10000 \\cdot 2\\pi",
        says="Wavelengths go from 2 pi towards 10000 * 2 pi, which the last of d_model = 512 misses by 4 %",
        check=lambda: close(wavelengths(512)[0], 2 * math.pi * 10000 ** (2 / 512), bar=1e-5)
        and close(wavelengths(512)[1], 20000 * math.pi * 10000 ** (-2 / 512), bar=1e-3),
        rows=("P1", "P2"),
    ),
    Fact(
        id="sinusoid-low-is-fast",
        place=SIN,
        quote="低维变化快,区分相邻位置,高维变化慢,编码远距离",
        says="Low dimensions change fast from position to position, high ones slowly",
        check=lambda: bool(((marian_table(12)[1] - marian_table(12)[0]).diff() < 0).all()),
        rows=("P2",),
    ),
    Fact(
        id="sinusoid-rotation",
        place=SIN,
        quote="在pos+kpos + k 处的值等于pospos 处的值旋转角度kωik\\omega_i",
        says="PE(pos + k) is PE(pos), each pair turned by k w_i",
        check=rotation,
        rows=("P1",),
    ),
    Fact(
        id="embed-scale",
        place=SIN,
        quote="HF 中对应 embed_scale(scale_embedding=True 时启用)",
        says="HF multiplies embeddings by sqrt(d_model) with scale_embedding=True, and else by 1",
        check=lambda: close(scaled_embedding(True), 24**0.5, bar=1e-6) and close(scaled_embedding(False), 1.0, bar=1e-6),
        rows=("P2",),
    ),
    Fact(
        id="torch-no-positions",
        place=SIN,
        quote="PyTorch nn 中没有内置位置编码(nn.Transformer 不包含)",
        says="torch.nn has no position encoding, and its Transformer cannot tell the order of tokens",
        check=no_torch_positions,
        rows=("P1",),
    ),
    Fact(
        id="marian-halves",
        place=SIN,
        quote="它不交错排列,而是把 sin 放在前一半、cos 放在后一半",
        says="Marian's table has all sines in its first half and all cosines in its second",
        check=halves,
        rows=("P2",),
    ),
    Fact(
        id="marian-frozen",
        place=SIN,
        quote="并作为冻结的 nn.Embedding(_freeze=True)",
        says="It is a frozen nn.Embedding",
        check=frozen,
        rows=("P2",),
    ),
    Fact(
        id="marian-by-position",
        place=SIN,
        quote="按 position_ids 查表",
        says="It is looked up by position, counted on from the cache",
        check=by_position,
        rows=("P2",),
    ),
)

# --- learned positions ---


def learned(family: str, path: str) -> bool:
    """nn.Embedding(max_position_embeddings, d_model) whose rows that were read get gradients, as tokens' do."""
    net = model(family).train()
    table = net.get_submodule(path)
    for p in net.parameters():
        p.requires_grad_(True)
    net(input_ids=ids(5)).last_hidden_state.square().sum().backward()
    moves = table.weight.grad.abs().amax(1) > 0
    return isinstance(table, nn.Embedding) and table.weight.shape == (32, 24) and moves.tolist() == [True] * 5 + [False] * 27


def gpt2_positions() -> list[list[int]]:
    """What wpe is asked for: in one pass of 5 tokens, and for 2 more over the cache."""
    net = model("GPT2")
    (first,) = watch(net, "wpe", input_ids=ids(5), use_cache=True)
    past = cache_of(run(net, input_ids=ids(5), use_cache=True))
    (then,) = watch(net, "wpe", input_ids=ids(2), **over(past, net))
    return [first.x.flatten().tolist(), then.x.flatten().tolist()]


def too_long(family: str, name: str) -> bool:
    net = model(family, **{name: 4})
    assert run(net, input_ids=ids(4)) is not None
    return raises((IndexError, RuntimeError), lambda: run(net, input_ids=ids(5)))


def bert_sum() -> bool:
    net = model("Bert")
    types = torch.tensor([[0, 0, 1, 1, 1]])
    (seen,) = watch(net, "embeddings", input_ids=ids(5), token_type_ids=types)
    e = seen.module
    total = e.word_embeddings(ids(5)) + e.position_embeddings(torch.arange(5)) + e.token_type_embeddings(types)
    return close(seen.y, seed.layer_norm(total, e.LayerNorm))


def expansion() -> bool:
    q, k, p_m, p_n = (values(name, 16) for name in ("q", "k", "pm", "pn"))
    return close((q + p_m) @ (k + p_n), q @ k + q @ p_n + p_m @ k + p_m @ p_n)


PE = "R1, 可学习 PE"

LEARNED_FACTS = (
    Fact(
        id="learned-gpt2",
        place=PE,
        quote="就是一个 nn.Embedding(max_position_embeddings, d_model),与 TokenEmbedding 一样随模型训练",
        says="GPT-2's is an nn.Embedding(max_position_embeddings, d_model) that is trained",
        check=lambda: learned("GPT2", "wpe"),
        rows=("P3",),
    ),
    Fact(
        id="learned-bert",
        place=PE,
        quote="GPT-2、BERT 使用的可学习绝对位置编码",
        says="So is BERT's",
        check=lambda: learned("Bert", "embeddings.position_embeddings"),
        rows=("P3",),
    ),
    Fact(
        id="learned-offset",
        place=PE,
        quote="有 KV Cache 时从已缓存的长度开始,即 GPT-2 中的 arange(seq) + past_seen_tokens",
        says="Positions are 0, 1, … and start at the cached length over a cache",
        check=gives([[0, 1, 2, 3, 4], [5, 6]], gpt2_positions),
        rows=("P3",),
    ),
    Fact(
        id="gpt2-1024",
        place=PE,
        quote="GPT-2 为 1024",
        says="GPT-2 has 1024 positions, and a further one is an error",
        check=lambda: default("GPT2", "n_positions") == 1024 and too_long("GPT2", "n_positions"),
        rows=("P3",),
    ),
    Fact(
        id="bert-512",
        place=PE,
        quote="BERT 为 512",
        says="BERT has 512 positions, and a further one is an error",
        check=lambda: default("Bert", "max_position_embeddings") == 512 and too_long("Bert", "max_position_embeddings"),
        rows=("P3",),
    ),
    Fact(
        id="bert-three-embeddings",
        place=PE,
        quote="BERT 还会再加 TokenTypeEmbedding,求和之后接 LayerNorm",
        says="BERT adds TokenTypeEmbedding as well, and norms the sum",
        check=bert_sum,
        rows=("P3", "M2"),
    ),
    Fact(
        id="additive-expansion",
        place=PE,
        quote="内容与绝对位置混在一起",
        says="(q + p_m)(k + p_n) holds two terms that mix content and position",
        check=expansion,
        rows=("P3",),
    ),
)

# --- RoPE ---


def hf_rope(x: Tensor, first: int = 0, theta: float = 10000.0) -> Tensor:
    """x (b, h, s, e) as HF's own function turns it, with exact tables."""
    angle = seed.angles(torch.arange(first, first + x.shape[-2]), theta, x.shape[-1]).repeat(1, 2)[None]
    return internals("Llama").apply_rotary_pos_emb(x, x, angle.cos(), angle.sin())[0]


def at(x: Tensor, position: int) -> Tensor:
    """A single vector, turned by HF as if it stood at `position`."""
    return hf_rope(x[None, None, None], first=position).flatten()


def turned_arrows() -> bool:
    """d_k = 2, theta_0 = 1: q' . k' = |q||k| cos(phi + (m - n)), phi the angle from k to q."""
    q, k = values("q", 2), values("k", 2)
    phi = torch.atan2(q[1], q[0]) - torch.atan2(k[1], k[0])
    return all(
        close(at(q, m) @ at(k, n), q.norm() * k.norm() * torch.cos(phi + (m - n))) for m, n in ((0, 0), (3, 1), (2, 7))
    )


def relative_only() -> bool:
    q, k = values("q", 12), values("k", 12)
    near = at(q, 5) @ at(k, 2)
    assert not torch.isclose(at(q, 6) @ at(k, 2), near, rtol=1e-3), "the distance makes no difference"
    return close(at(q, 45) @ at(k, 42), near)


def pairs_apart() -> bool:
    """Each of the d_k / 2 pairs (i, i + d_k / 2) keeps its length and turns by m theta^(-2i / d_k)."""
    x, m = values("x", 12), 3
    before, after = (torch.complex(y[:6], y[6:]) for y in (x, at(x, m)))
    return close((after / before).angle() % (2 * torch.pi), m * seed.inv_freq(10000.0, 12) % (2 * torch.pi), bar=1e-9)


def block_matrix() -> bool:
    """The same rotation as a d_k x d_k matrix, which is nearly all zeros."""
    x, m, d = values("x", 32), 3, 32
    angle = m * seed.inv_freq(10000.0, d)
    matrix = torch.zeros(d, d, dtype=torch.float64)
    i = torch.arange(d // 2)
    matrix[i, i] = matrix[i + d // 2, i + d // 2] = angle.cos()
    matrix[i, i + d // 2], matrix[i + d // 2, i] = -angle.sin(), angle.sin()
    assert int((matrix != 0).sum()) == 2 * d, "it is not sparse"
    return close(at(x, m), matrix @ x)


def deepseek_pairs() -> bool:
    """Adjacent pairs: turning halves instead gives other numbers, and the same once the rotated outputs are permuted."""
    net, other = model("DeepseekV3"), model("DeepseekV3", rope_interleave=False)
    wanted = run(net, input_ids=ids(6)).last_hidden_state
    other.load_state_dict(net.state_dict())
    assert not torch.allclose(run(other, input_ids=ids(6)).last_hidden_state, wanted, rtol=1e-3), "both turn alike"
    apart = torch.tensor([0, 2, 1, 3])  # the first of both pairs, then the second of both
    for layer in other.layers:
        by_head = layer.self_attn.q_b_proj.weight.unflatten(0, (4, 10))
        by_head[:, 6:] = by_head[:, 6:][:, apart]
        shared = layer.self_attn.kv_a_proj_with_mqa.weight
        shared[-4:] = shared[-4:][apart]
    return close(run(other, input_ids=ids(6)).last_hidden_state, wanted)


def complex_form() -> bool:
    """Stack(-x[1::2], x[::2]) is a turn by 90 degrees: x cos + R(x) sin = x e^(i m theta)."""
    x, m = values("x", 12), 3
    angle = m * seed.inv_freq(10000.0, 12)
    spread = angle.repeat_interleave(2)
    real = x * spread.cos() + seed.rotate_every_two(x) * spread.sin()
    turned = torch.view_as_complex(x.unflatten(-1, (6, 2))) * torch.polar(torch.ones(6, dtype=torch.float64), angle)
    return close(real, torch.view_as_real(turned).flatten())


def permuted_weights() -> bool:
    """Scores of Meta's form (adjacent pairs), and HF's form with the rows of q_proj and k_proj permuted."""
    wq, wk, x, y = values("wq", 12, 24) / 5, values("wk", 12, 24) / 5, values("x", 24), values("y", 24)
    rows = torch.cat([torch.arange(0, 12, 2), torch.arange(1, 12, 2)])
    angle = {n: (n * seed.inv_freq(10000.0, 12)).repeat_interleave(2) for n in (7, 3)}
    q, k = (v * angle[n].cos() + seed.rotate_every_two(v) * angle[n].sin() for v, n in ((wq @ x, 7), (wk @ y, 3)))
    assert not torch.isclose(at(wq @ x, 7) @ at(wk @ y, 3), q @ k, rtol=1e-3), "it would do without"
    return close(at(wq[rows] @ x, 7) @ at(wk[rows] @ y, 3), q @ k)


def once_a_model() -> bool:
    """One call of rotary_emb, and the same two tensors in every layer."""
    layers = [f"layers.{i}.self_attn" for i in range(3)]
    rotary, *attentions = watch(model("Llama"), "rotary_emb", *layers, input_ids=ids(5))
    given = [seen.kwargs["position_embeddings"] for seen in attentions]
    return rotary.times == 1 and all(each[0] is given[0][0] and each[1] is given[0][1] for each in given)


def in_every_layer() -> int:
    with counted(internals("Llama"), "apply_rotary_pos_emb") as spy:
        run(model("Llama"), input_ids=ids(5))
    return spy.call_count


ROPE = "R1, RoPE"

ROPE_FACTS = (
    Fact(
        id="rope-formula",
        place=ROPE,
        quote="RoPE(x) = x * Cos(pos * inv_freq) … + RotateHalf(x) * Sin(pos * inv_freq)",
        says="HF's apply_rotary_pos_emb computes x * cos + RotateHalf(x) * sin",
        check=lambda: close(hf_rope(values("x", 1, 2, 5, 8)), seed.rope_at(values("x", 1, 2, 5, 8))),
        rows=("P4",),
    ),
    Fact(
        id="inv-freq",
        place=ROPE,
        quote="inv_freq = 1 / theta^(Arange(0, d_k, 2) / d_k)",
        says="LlamaRotaryEmbedding's inv_freq is 1 / theta^(2i / d_k), as (d_k / 2,)",
        check=lambda: close(model("Llama").rotary_emb.inv_freq, seed.inv_freq(10000.0, 6), bar=1e-6),
        rows=("P4",),
    ),
    Fact(
        id="inv-freq-twice",
        place=ROPE,
        quote="HF 中 Cat 两份得到 d_k 维",
        says="HF's cos and sin hold every frequency twice, one half after the other, d_k wide",
        check=lambda: all(
            table.shape == (1, 5, 6) and torch.equal(table[..., :3], table[..., 3:])
            for table in watch(model("Llama"), "layers.0.self_attn", input_ids=ids(5))[0].kwargs["position_embeddings"]
        ),
        rows=("P4",),
    ),
    Fact(
        id="rotate-half",
        place=ROPE,
        quote="RotateHalf(x) = Cat(-x[..., d_k/2:], x[..., :d_k/2])",
        says="HF's rotate_half is Cat(-second half, first half)",
        check=lambda: torch.equal(internals("Llama").rotate_half(values("x", 2, 8)), seed.rotate_half(values("x", 2, 8))),
        rows=("P4",),
    ),
    Fact(
        id="rope-arrows",
        place=ROPE,
        quote="q'_m \\cdot k'_n = |q||k|\\cos(\\varphi + (m-n)\\theta)",
        says="In the plane q'_m . k'_n = |q||k| cos(phi + (m - n) theta)",
        check=turned_arrows,
        rows=("P4",),
    ),
    Fact(
        id="rope-relative",
        place=ROPE + " · R2, 3.3",
        quote="只依赖相对位置m−nm-n,与mm、nn 各自的取值无关",
        says="Scores depend on m - n alone",
        check=relative_only,
        rows=("P4",),
    ),
    Fact(
        id="rope-pairs",
        place=ROPE,
        quote="把 d_k 维拆成 d_k/2 对,每一对看成一个平面各自旋转",
        says="Each of the d_k / 2 pairs turns by itself, the i-th by m theta^(-2i / d_k)",
        check=pairs_apart,
        rows=("P4",),
    ),
    Fact(
        id="rope-first-fast",
        place=ROPE,
        quote="前几对转得快、区分相邻 token,后几对转得慢、编码远距离",
        says="The first pairs turn fast, the last slowly",
        check=lambda: bool((model("Llama").rotary_emb.inv_freq.diff() < 0).all())
        and model("Llama").rotary_emb.inv_freq[0] == 1,
        rows=("P4",),
    ),
    Fact(
        id="rope-not-on-v",
        place=ROPE,
        quote="只作用于 Q 和 K,不作用于 V",
        says="RoPE acts on Q and K and not on V: cached values are v_proj(x), at any position",
        check=lambda: values_unturned(),
        rows=("P4",),
    ),
    Fact(
        id="rope-matrix",
        place=ROPE,
        quote="写成整个向量的矩阵乘法是一个绝大部分为 0 的 d_k×d_k 分块对角矩阵",
        says="It is a d_k x d_k matrix of rotations with 2 d_k entries that are not 0",
        check=block_matrix,
        rows=("P4",),
    ),
    Fact(
        id="rope-quarter-turn",
        place=ROPE,
        quote="R 把每一对(xa,xb)(x_a, x_b) 变成(−xb,xa)(-x_b, x_a),即旋转 90°",
        says="R turns every pair by 90 degrees: applied twice it is -x",
        check=lambda: torch.equal(
            internals("Llama").rotate_half(internals("Llama").rotate_half(values("x", 8))), -values("x", 8)
        ),
        rows=("P4",),
    ),
    Fact(
        id="rope-halves",
        place=ROPE,
        quote="HF 让第ii 维与第i+dk/2i + d_k/2 维配对(GPT-NeoX 风格)",
        says="HF pairs dimension i with i + d_k / 2",
        check=lambda: at(torch.eye(8, dtype=torch.float64)[1], 3).nonzero().flatten().tolist() == [1, 5],
        rows=("P4",),
    ),
    Fact(
        id="rope-every-two",
        place=ROPE + " · R2, 3.3",
        quote="对应的 R 为 Stack(-x[..., 1::2], x[..., ::2])(rotate_every_two),也可以写成复数乘法",
        says="With adjacent pairs R is Stack(-x[1::2], x[::2]), and the whole a product of complex numbers",
        check=complex_form,
        rows=("P4",),
    ),
    Fact(
        id="deepseek-interleave",
        place=ROPE,
        quote="DeepSeek-V3 的 rope_interleave=True 即使用相邻配对",
        says="DeepSeek-V3 has rope_interleave=True and turns adjacent pairs",
        check=lambda: default("DeepseekV3", "rope_interleave") is True and deepseek_pairs(),
        rows=("P4",),
    ),
    Fact(
        id="rope-permutation",
        place=ROPE,
        quote="所以 HF 转换 Llama 权重时对 q_proj/k_proj 的输出维度做了一次置换",
        says="Both pairings score alike once the outputs of q_proj and k_proj are permuted",
        check=permuted_weights,
        rows=("P4",),
    ),
    Fact(
        id="theta-llama-2",
        place=ROPE,
        quote="rope_theta,Llama 1/2 为 10000",
        says="rope_theta is 10000 by default, as Llama 1 and 2 have it",
        check=lambda: default("Llama", "rope_theta") == 10000
        and hub_config("Llama-2-7b-hf").get("rope_theta", 10000) == 10000,
        rows=("P4",),
    ),
    Fact(
        id="theta-llama-3",
        place=ROPE,
        quote="Llama 3 为 500000",
        says="Llama 3's published config.json says 500000, and HF's rotary table follows it",
        check=lambda: close(
            model("Llama", rope_theta=hub_config("Llama-3.1-8B")["rope_theta"]).rotary_emb.inv_freq,
            seed.inv_freq(500000.0, 6),
            bar=1e-6,
        ),
        rows=("P4",),
    ),
    Fact(
        id="rope-once-a-model",
        place=ROPE,
        quote="cos/sin 在 Model 层由 LlamaRotaryEmbedding 计算一次,作为 position_embeddings 传给每一层",
        says="cos and sin are computed once in the model, and every layer gets the same",
        check=once_a_model,
        rows=("P4", "M4"),
    ),
    Fact(
        id="rope-cached-rotated",
        place=ROPE,
        quote="KV Cache 中存的是旋转之后的 K",
        says="The cache holds keys after their rotation: at other positions it holds others",
        check=lambda: keys_turned(),
        rows=("P4", "G1"),
    ),
    Fact(
        id="rope-every-layer",
        place=ROPE + " · R2, 3.3",
        quote="RoPE 在每一层的 attention 里都要施加",
        says="RoPE is applied in the attention of every layer",
        check=gives(3, in_every_layer),
        rows=("P4",),
    ),
)


def held_at(first: int) -> Any:
    """Keys and values of the first layer of a Llama whose tokens stand from `first` on."""
    return cached(
        cache_of(run(model("Llama"), input_ids=ids(5), position_ids=torch.arange(5)[None] + first, use_cache=True)), 0
    )


def values_unturned() -> bool:
    (seen,) = watch(model("Llama"), "layers.0.self_attn", input_ids=ids(5))
    plain = seed.heads(seen.module.v_proj(seen.x), 2)
    return close(held_at(0)[1], plain) and close(held_at(9)[1], plain)


def keys_turned() -> bool:
    angle = seed.angles(torch.full((5,), 9), 10000.0, 6).repeat(1, 2)[None]
    assert not torch.allclose(held_at(9)[0], held_at(0)[0], rtol=1e-3), "the position does not show in it"
    return close(held_at(9)[0], seed.rope(held_at(0)[0], angle.cos(), angle.sin()), bar=1e-6)


FACTS = (*NORM_FACTS, *SINUSOIDAL_FACTS, *LEARNED_FACTS, *ROPE_FACTS)
