"""R2, 3 and 4: training and inference, Llama, and the mini-LLaMA."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity_tests.facts import formulas as seed
from parity_tests.facts.layers import same_layer
from parity_tests.facts.mixing import mixers
from parity_tests.facts.models import gpt2_head, mlm_head, small_transformer
from parity_tests.facts.record import Changed, Fact, default, gives, raises, released
from parity_tests.facts.subjects import biases, close, ids, model, over, run, values, watch
from parity_tests.facts.transformer_notes import generated
from parity_tests.harness.hf import Absent, cache_of

# --- slips ---


def listing_runs() -> bool:
    """With the imports that the seed's listing has: torch's and RotaryEmbedding's."""
    if importlib.util.find_spec("rotary_embedding_torch") is None or importlib.util.find_spec("x_transformers") is None:
        raise Absent("the packages that R2 names are not installed")
    from parity_tests import printed_mini_llama

    listing = re.sub(r"^from x_transformers.*$", "", inspect.getsource(printed_mini_llama), flags=re.MULTILINE)
    names: dict[str, Any] = {"__name__": "listing"}
    exec(compile("from __future__ import annotations\n" + listing, "listing", "exec"), names)
    return not raises(NameError, lambda: names["DecoderBlock"](12, 2))


def post_norm_is_gpt2s() -> bool:
    """y = LayerNorm(x + attention(x)), as the original Transformer has it."""
    layer, norm, token = watch(model("GPT2"), "h.1", "h.1.ln_1", "h.1.attn", input_ids=ids(5))
    return torch.equal(token.x, layer.x) and not torch.equal(norm.x, layer.x)


SLIPS = (
    Fact(
        id="listing-imports",
        place="R2, 4.1 · R2, 4.3",
        quote="import torch … from rotary_embedding_torch import RotaryEmbedding",
        says="The listing of the mini-LLaMA runs with the imports that it has",
        check=listing_runs,
        changed=Changed(now="RMSNorm, which its block takes, is imported nowhere", check=lambda: not listing_runs()),
    ),
    Fact(
        id="standard-decoder-is-post-norm",
        place="R2, 3.3",
        quote="LLaMA 采用 Pre-Norm(Norm -> Add),而不是标准 Transformer 的 Post-Norm",
        says="The standard decoder-only Transformer, which Llama departs from, is Post-Norm",
        check=post_norm_is_gpt2s,
        changed=Changed(now="GPT-2 is Pre-LN, as Llama is", check=lambda: mixers("GPT2")),
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


def encoder_decoders() -> list[Any]:
    return [released(f"{family}Config")().is_encoder_decoder for family in ("T5", "Bart", "Marian")]


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
    ),
    Fact(
        id="parallel-training",
        place="R2, 3.1",
        quote="一次性输入整个句子作为 Input，随后使用 Mask 机制 模拟未知后续序列的情况",
        says="One masked pass gives every position what it would get from its prefix alone",
        check=parallel_is_stepwise,
    ),
    Fact(
        id="kv-cache-harmless",
        place="R2, 3.1",
        quote="KV Cache（键值缓存），因为它 不会影响生成质量",
        says="A KV cache changes neither logits nor generated tokens",
        check=cached_is_uncached,
    ),
    Fact(
        id="encoder-only",
        place="R2, 3.2",
        quote="Encoder-Only（以 BERT 为代表）",
        says="BERT is an encoder: no decoder, and the first token sees the last",
        check=lambda: kinds()["Bert"] == (False, False),
    ),
    Fact(
        id="encoder-decoder",
        place="R2, 3.2",
        quote="Encoder-Decoder（以 T5 和 BART 为代表）",
        says="T5 and BART (and Marian) are encoder and decoder",
        check=gives([True, True, True], encoder_decoders),
    ),
    Fact(
        id="decoder-only",
        place="R2, 3.2",
        quote="Decoder-Only（以 GPT 系列 为代表）",
        says="GPT-2 is a decoder: no encoder, and no token sees a later one",
        check=lambda: kinds()["GPT2"] == (False, True),
    ),
    Fact(
        id="prefix-reusable",
        place="R2, 3.2",
        quote="每个 Token 的表示之和它之前的输入有关",
        says="In decoders a token's state depends on what precedes it, so a cache can be kept; not in encoders",
        check=lambda: prefix_kept("GPT2") and prefix_kept("Llama") and not prefix_kept("Bert"),
    ),
    Fact(
        id="llama-decoder-only",
        place="R2, 3.3",
        quote="它采用 Decoder-Only 结构",
        says="Llama is a decoder",
        check=lambda: not default("Llama", "is_encoder_decoder") and prefix_kept("Llama"),
    ),
    Fact(
        id="silu-smooth",
        place="R2, 3.3",
        quote="相比 ReLU，SwiGLU 梯度更平滑",
        says="SiLU's derivative is continuous at 0, where ReLU's jumps by 1",
        check=smooth_at_zero,
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
    weight, x = next(iter(norm.parameters())), values("x", 9, 12)
    with torch.no_grad():
        weight.copy_(1 + values("norm weight", 12) / 4)
        return close(norm(x), seed.rms_norm(x, weight, 0.0))


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
    ),
    Fact(
        id="notes-rms-norm",
        place="R2, 4",
        quote="RMSNorm归一化：x_transformers.RMSNorm",
        says="x-transformers' RMSNorm is RMSNorm (without an eps)",
        check=packaged_norm,
    ),
    Fact(
        id="batched-product",
        place="R2, 4.1",
        quote="QK计算，使用BMM，只对后两个维度做乘法",
        says="q @ k.transpose(-2, -1) multiplies over the last two axes, for each row and head",
        check=batched_product,
    ),
    Fact(
        id="mask-broadcast",
        place="R2, 4.1",
        quote="[B, T, T]扩展到 [B, 1, T, T]，自动broadcast到 [B, num_heads, T, T]",
        says="A mask (B, T, T), unsqueezed, is spread over the heads, and -inf gets no weight",
        check=masked_scores,
    ),
    Fact(
        id="contiguous-before-view",
        place="R2, 4.1",
        quote="确保存储方式改变 -> 自动合并reshape",
        says="After transpose, view needs contiguous",
        check=needs_contiguous,
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
    ),
    Fact(
        id="head-no-bias",
        place="R2, 4.6",
        quote="self.final_proj = nn.Linear(dim, vocab_size, bias=False)",
        says="Llama's last projection has no bias",
        check=lambda: not biases(model("Llama", "ForCausalLM").lm_head),
    ),
)

FACTS = (*SLIPS, *LLAMA, *MINI)
