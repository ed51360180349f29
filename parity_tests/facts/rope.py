"""R1, "RoPE"."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from parity_tests.facts import formulas as seed
from parity_tests.facts.record import Fact, default, gives, released, theta
from parity_tests.facts.subjects import close, counted, hub_config, ids, internals, model, run, values, watch
from parity_tests.harness.hf import cache_of, cached


def hf_rope(x: Tensor, first: int = 0) -> Tensor:
    """x (b, h, s, e) as HF's own function turns it, with exact tables."""
    angle = seed.angles(torch.arange(first, first + x.shape[-2]), 10000.0, x.shape[-1]).repeat(1, 2)[None]
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


def values_unturned() -> bool:
    (seen,) = watch(model("Llama"), "layers.0.self_attn", input_ids=ids(5))
    plain = seed.heads(seen.module.v_proj(seen.x), 2)
    return close(held_at(0)[1], plain) and close(held_at(9)[1], plain)


def keys_turned() -> bool:
    angle = seed.angles(torch.full((5,), 9), 10000.0, 6).repeat(1, 2)[None]
    assert not torch.allclose(held_at(9)[0], held_at(0)[0], rtol=1e-3), "the position does not show in it"
    return close(held_at(9)[0], seed.rope(held_at(0)[0], angle.cos(), angle.sin()), bar=1e-6)


ROPE_FACTS = (
    Fact(
        id="rope-formula",
        place=ROPE,
        quote="RoPE(x) = x * Cos(pos * inv_freq) … + RotateHalf(x) * Sin(pos * inv_freq)",
        says="HF's apply_rotary_pos_emb computes x * cos + RotateHalf(x) * sin",
        check=lambda: close(hf_rope(values("x", 1, 2, 5, 8)), seed.rope_at(values("x", 1, 2, 5, 8))),
    ),
    Fact(
        id="inv-freq",
        place=ROPE,
        quote="inv_freq = 1 / theta^(Arange(0, d_k, 2) / d_k)",
        says="LlamaRotaryEmbedding's inv_freq is 1 / theta^(2i / d_k), as (d_k / 2,)",
        check=lambda: close(model("Llama").rotary_emb.inv_freq, seed.inv_freq(10000.0, 6), bar=1e-6),
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
    ),
    Fact(
        id="rotate-half",
        place=ROPE,
        quote="RotateHalf(x) = Cat(-x[..., d_k/2:], x[..., :d_k/2])",
        says="HF's rotate_half is Cat(-second half, first half)",
        check=lambda: torch.equal(internals("Llama").rotate_half(values("x", 2, 8)), seed.rotate_half(values("x", 2, 8))),
    ),
    Fact(
        id="rope-arrows",
        place=ROPE,
        quote="q'_m \\cdot k'_n = |q||k|\\cos(\\varphi + (m-n)\\theta)",
        says="In the plane q'_m . k'_n = |q||k| cos(phi + (m - n) theta)",
        check=turned_arrows,
    ),
    Fact(
        id="rope-relative",
        place=ROPE + " · R2, 3.3",
        quote="只依赖相对位置m−nm-n,与mm、nn 各自的取值无关",
        says="Scores depend on m - n alone",
        check=relative_only,
    ),
    Fact(
        id="rope-pairs",
        place=ROPE,
        quote="把 d_k 维拆成 d_k/2 对,每一对看成一个平面各自旋转",
        says="Each of the d_k / 2 pairs turns by itself, the i-th by m theta^(-2i / d_k)",
        check=pairs_apart,
    ),
    Fact(
        id="rope-first-fast",
        place=ROPE,
        quote="前几对转得快、区分相邻 token,后几对转得慢、编码远距离",
        says="The first pairs turn fast, the last slowly",
        check=lambda: bool((model("Llama").rotary_emb.inv_freq.diff() < 0).all())
        and model("Llama").rotary_emb.inv_freq[0] == 1,
    ),
    Fact(
        id="rope-not-on-v",
        place=ROPE,
        quote="只作用于 Q 和 K,不作用于 V",
        says="RoPE acts on Q and K and not on V: cached values are v_proj(x), at any position",
        check=values_unturned,
    ),
    Fact(
        id="rope-matrix",
        place=ROPE,
        quote="写成整个向量的矩阵乘法是一个绝大部分为 0 的 d_k×d_k 分块对角矩阵",
        says="It is a d_k x d_k matrix of rotations with 2 d_k entries that are not 0",
        check=block_matrix,
    ),
    Fact(
        id="rope-quarter-turn",
        place=ROPE,
        quote="R 把每一对(xa,xb)(x_a, x_b) 变成(−xb,xa)(-x_b, x_a),即旋转 90°",
        says="R turns every pair by 90 degrees: applied twice it is -x",
        check=lambda: torch.equal(
            internals("Llama").rotate_half(internals("Llama").rotate_half(values("x", 8))), -values("x", 8)
        ),
    ),
    Fact(
        id="rope-halves",
        place=ROPE,
        quote="HF 让第ii 维与第i+dk/2i + d_k/2 维配对(GPT-NeoX 风格)",
        says="HF pairs dimension i with i + d_k / 2",
        check=lambda: at(torch.eye(8, dtype=torch.float64)[1], 3).nonzero().flatten().tolist() == [1, 5],
    ),
    Fact(
        id="rope-every-two",
        place=ROPE + " · R2, 3.3",
        quote="对应的 R 为 Stack(-x[..., 1::2], x[..., ::2])(rotate_every_two),也可以写成复数乘法",
        says="With adjacent pairs R is Stack(-x[1::2], x[::2]), and the whole a product of complex numbers",
        check=complex_form,
    ),
    Fact(
        id="deepseek-interleave",
        place=ROPE,
        quote="DeepSeek-V3 的 rope_interleave=True 即使用相邻配对",
        says="DeepSeek-V3 has rope_interleave=True and turns adjacent pairs",
        check=lambda: default("DeepseekV3", "rope_interleave") is True and deepseek_pairs(),
    ),
    Fact(
        id="rope-permutation",
        place=ROPE,
        quote="所以 HF 转换 Llama 权重时对 q_proj/k_proj 的输出维度做了一次置换",
        says="Both pairings score alike once the outputs of q_proj and k_proj are permuted",
        check=permuted_weights,
    ),
    Fact(
        id="theta-llama-2",
        place=ROPE,
        quote="rope_theta,Llama 1/2 为 10000",
        says="rope_theta is 10000 by default, as Llama 1 and 2 have it",
        check=lambda: theta(released("LlamaConfig")()) == 10000
        and theta(released("LlamaConfig")(**hub_config("Llama-2-7b-hf"))) == 10000,
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
    ),
    Fact(
        id="rope-once-a-model",
        place=ROPE,
        quote="cos/sin 在 Model 层由 LlamaRotaryEmbedding 计算一次,作为 position_embeddings 传给每一层",
        says="cos and sin are computed once in the model, and every layer gets the same",
        check=once_a_model,
    ),
    Fact(
        id="rope-cached-rotated",
        place=ROPE,
        quote="KV Cache 中存的是旋转之后的 K",
        says="The cache holds keys after their rotation: at other positions it holds others",
        check=keys_turned,
    ),
    Fact(
        id="learned-once",
        place=ROPE,
        quote="与 GPT-2 / BERT 的可学习绝对位置编码(只在输入处加一次)不同",
        says="GPT-2 and BERT look their positions up once, at the input",
        check=gives(
            [1, 1],
            lambda: [
                watch(model("GPT2"), "wpe", input_ids=ids(5))[0].times,
                watch(model("Bert"), "embeddings.position_embeddings", input_ids=ids(5))[0].times,
            ],
        ),
    ),
    Fact(
        id="rope-every-layer",
        place=ROPE + " · R2, 3.3",
        quote="RoPE 在每一层的 attention 里都要施加",
        says="RoPE is applied in the attention of every layer",
        check=gives(3, in_every_layer),
    ),
)


def held_at(first: int) -> Any:
    """Keys and values of the first layer of a Llama whose tokens stand from `first` on."""
    return cached(
        cache_of(run(model("Llama"), input_ids=ids(5), position_ids=torch.arange(5)[None] + first, use_cache=True)), 0
    )


FACTS = (*ROPE_FACTS,)
