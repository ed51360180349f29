"""R1, "MLA": how DeepSeek-V3 attends, and what it caches."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from parity_tests.facts import formulas as seed
from parity_tests.facts.record import Changed, Fact, default, defaults, gives
from parity_tests.facts.subjects import close, ids, internals, model, over, published, run, sizes, values, watch
from parity_tests.harness.hf import cache_of, cached

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
    ),
    *(
        Fact(
            id=f"deepseek-{name.replace('_', '-')}",
            place="R1, MLA",
            quote=quote,
            says=f"DeepSeek-V3's {name} is {value} by default",
            check=defaults("DeepseekV3", **{name: value}),
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
    ),
    Fact(
        id="mla-q-norm",
        place="R1, MLA",
        quote="中间夹一个 q_a_layernorm",
        says="Between them stands q_a_layernorm, an RMSNorm over 1536",
        check=lambda: type(published_mla().q_a_layernorm).__name__ == "DeepseekV3RMSNorm"
        and published_mla().q_a_layernorm.weight.shape == (1536,),
    ),
    Fact(
        id="mla-kv-a",
        place="R1, MLA",
        quote="kv_a_proj_with_mqa,一次性产生压缩后的 latent c_kv(512 维)和所有头共享的 k_rope(64 维",
        says="kv_a_proj_with_mqa gives the latent (512) and one k_rope (64) for all heads at once",
        check=gives((7168, 512 + 64), lambda: sizes(published_mla().kv_a_proj_with_mqa)),
    ),
    Fact(
        id="mla-kv-b",
        place="R1, MLA",
        quote="kv_b_proj,把 latent 解压回每个头的 k_nope 和 v,512 -> head×(128+128)",
        says="kv_b_proj unpacks the latent, 512 -> 128 x (128 + 128)",
        check=gives((512, 128 * (128 + 128)), lambda: sizes(published_mla().kv_b_proj)),
    ),
    Fact(
        id="mla-rope-blocks-folding",
        place="R1, MLA",
        quote="如果直接作用在解压后的 K 上,kv_b_proj 就无法被吸收进 Q",
        says="RoPE on unpacked keys would keep kv_b_proj from being folded into Q",
        check=rotated_keys_resist_folding,
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
    ),
    Fact(
        id="mla-mha-40960",
        place="R1, MLA",
        quote="而 128 头的 MHA 需要 128×(192+128)=40960 个数",
        says="MHA with 128 heads would hold 40960 numbers a token and layer",
        check=gives(40960, mha_numbers),
    ),
    Fact(
        id="mla-mscale",
        place="R1, MLA",
        quote="使用 YaRN 扩展上下文时对 softmax scale 的修正",
        says="With YaRN the softmax scale is corrected (by the square of 0.1 mscale_all_dim ln(factor) + 1)",
        check=lambda: close(score_scale(), 10**-0.5)
        and close(score_scale(rope_scaling=YARN), 10**-0.5 * MSCALE**2),
    ),
    Fact(
        id="mla-mscale-once",
        place="R1, MLA",
        quote="* rsqrt(192) * mscale",
        says="The softmax scale is multiplied by YaRN's mscale, 0.1 mscale_all_dim ln(factor) + 1, once",
        check=lambda: close(score_scale(rope_scaling=YARN), 10**-0.5 * MSCALE),
        changed=Changed(
            now="it is multiplied in twice, once for q and once for k",
            check=lambda: close(score_scale(rope_scaling=YARN) / score_scale(), MSCALE**2),
        ),
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
    ),
    Fact(
        id="mla-absorbed",
        place="R1, MLA",
        quote="把 LinearKVB 合并进 Q 和 LinearOut,直接在 576 维 latent 上做 attention",
        says="With kv_b_proj folded into Q and LinearOut, attention on the latents alone gives HF's numbers",
        check=mla_absorbed,
    ),
    Fact(
        id="mla-no-repeat",
        place="R1, MLA",
        quote="num_key_value_heads = num_attention_heads = 128,所以 repeat_kv 的 n_rep=1",
        says="num_key_value_heads = num_attention_heads = 128, so repeat_kv repeats nothing",
        check=lambda: default("DeepseekV3", "num_key_value_heads") == default("DeepseekV3", "num_attention_heads") == 128
        and published_mla().num_key_value_groups == 1,
    ),
)

FACTS = (*MLA_FACTS,)
