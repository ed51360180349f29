"""R1, "Sinusoidal PE" and "可学习 PE"."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from parity_tests.facts import formulas as seed
from parity_tests.facts.record import Fact, default, gives, raises
from parity_tests.facts.subjects import close, filled, ids, model, over, released, run, values, watch
from parity_tests.harness.hf import cache_of

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
    """PE(pos + k) is PE(pos) with each pair (sin, cos) turned by k w_i, for all positions of Marian's table and several k."""
    table = marian_table()
    for k in (1, 5):
        angle = k * seed.inv_freq(10000.0, 24)
        sin, cos = table[:-k].chunk(2, -1)
        turned = [sin * angle.cos() + cos * angle.sin(), cos * angle.cos() - sin * angle.sin()]
        assert close(torch.cat(turned, -1), table[k:], bar=1e-6)
    return True


def scaled_embedding(scale: bool) -> float:
    net = model("Marian", scale_embedding=scale)
    (layer,) = watch(net.encoder, "layers.0", input_ids=ids(6), attention_mask=torch.ones(1, 6))
    plain = net.encoder.embed_tokens.weight[ids(6)]
    return float(((layer.x - marian_table()[:6]) / plain).nanmedian())


def wavelengths() -> tuple[float, float]:
    """The shortest and the longest of Marian's table of width 24: positions until a sine returns."""
    omega = marian_table(12)[1].asin()  # the angles of position 1, none of them past a quarter turn
    return 2 * math.pi / float(omega[0]), 2 * math.pi / float(omega[-1])


def no_torch_positions() -> bool:
    """No class of torch.nn is one, and nn.Transformer cannot tell the order of its source."""
    named = [name for name in dir(nn) if "position" in name.lower()]
    assert not named, f"there is {named}"
    layer = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True)
    encoder = filled(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
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
        place=SIN + " · R2, 4.1",
        quote="加法式:只在输入处与 TokenEmbedding 相加一次,之后的层不再注入位置信息",
        says="The table is added to the embeddings once, at the input, and read no more",
        check=added_once,
    ),
    Fact(
        id="sinusoid-not-learned",
        place=SIN,
        quote="没有可学习的参数",
        says="It has nothing to learn: a Marian that is being trained leaves its table alone",
        check=lambda: not any(
            p.requires_grad for n, p in released("MarianModel")(model("Marian").config).named_parameters() if "positions" in n
        ),
    ),
    Fact(
        id="sinusoid-wavelengths",
        place=SIN,
        quote="波长从2π2\\pi 到10000⋅2π10000 \\cdot 2\\pi",
        says="Wavelengths go from 2 pi to 10000^(1 - 2 / d_model) * 2 pi: towards 10000 * 2 pi as d_model grows",
        check=lambda: close(wavelengths()[0], 2 * math.pi, bar=1e-6)
        and close(wavelengths()[1], 10000 ** (1 - 2 / 24) * 2 * math.pi, bar=1e-6),
    ),
    Fact(
        id="sinusoid-low-is-fast",
        place=SIN,
        quote="低维变化快,区分相邻位置,高维变化慢,编码远距离",
        says="Low dimensions change fast from position to position, high ones slowly",
        check=lambda: bool(((marian_table(12)[1] - marian_table(12)[0]).diff() < 0).all()),
    ),
    Fact(
        id="sinusoid-rotation",
        place=SIN,
        quote="在pos+kpos + k 处的值等于pospos 处的值旋转角度kωik\\omega_i",
        says="PE(pos + k) is PE(pos), each pair turned by k w_i",
        check=rotation,
    ),
    Fact(
        id="embed-scale",
        place=SIN,
        quote="HF 中对应 embed_scale(scale_embedding=True 时启用)",
        says="HF multiplies embeddings by sqrt(d_model) with scale_embedding=True, and else by 1",
        check=lambda: close(scaled_embedding(True), 24**0.5, bar=1e-6) and close(scaled_embedding(False), 1.0, bar=1e-6),
    ),
    Fact(
        id="torch-no-positions",
        place=SIN,
        quote="PyTorch nn 中没有内置位置编码(nn.Transformer 不包含)",
        says="torch.nn has no position encoding, and its Transformer cannot tell the order of tokens",
        check=no_torch_positions,
    ),
    Fact(
        id="marian-halves",
        place=SIN + " · R2, 1.1",
        quote="它不交错排列,而是把 sin 放在前一半、cos 放在后一半",
        says="Marian's table has all sines in its first half and all cosines in its second",
        check=halves,
    ),
    Fact(
        id="marian-frozen",
        place=SIN,
        quote="并作为冻结的 nn.Embedding(_freeze=True)",
        says="It is a frozen nn.Embedding",
        check=frozen,
    ),
    Fact(
        id="marian-by-position",
        place=SIN,
        quote="按 position_ids 查表",
        says="It is looked up by position, counted on from the cache",
        check=by_position,
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
    changes: dict[str, Any] = {name: 4}
    net = model(family, **changes)
    assert run(net, input_ids=ids(4)) is not None
    return raises((IndexError, RuntimeError), lambda: run(net, input_ids=ids(5)))


def bert_sum() -> bool:
    net = model("Bert")
    types = torch.tensor([[0, 0, 1, 1, 1]])
    (seen,) = watch(net, "embeddings", input_ids=ids(5), token_type_ids=types)
    e = seen.module
    total = e.word_embeddings(ids(5)) + e.position_embeddings(torch.arange(5)) + e.token_type_embeddings(types)
    return close(seen.y, seed.layer_norm(total, e.LayerNorm))


def shifted(family: str) -> float:
    """How much the first layer's attention changes when all tokens stand three positions further on."""
    net, positions = model(family), torch.arange(5)[None]
    here, there = (
        run(net, input_ids=ids(5), position_ids=positions + n, output_attentions=True).attentions[0] for n in (0, 3)
    )
    return float((here - there).abs().max())


PE = "R1, 可学习 PE"

LEARNED_FACTS = (
    Fact(
        id="learned-gpt2",
        place=PE,
        quote="就是一个 nn.Embedding(max_position_embeddings, d_model),与 TokenEmbedding 一样随模型训练",
        says="GPT-2's is an nn.Embedding(max_position_embeddings, d_model) that is trained",
        check=lambda: learned("GPT2", "wpe"),
    ),
    Fact(
        id="learned-bert",
        place=PE,
        quote="GPT-2、BERT 使用的可学习绝对位置编码",
        says="So is BERT's",
        check=lambda: learned("Bert", "embeddings.position_embeddings"),
    ),
    Fact(
        id="learned-offset",
        place=PE,
        quote="有 KV Cache 时从已缓存的长度开始,即 GPT-2 中的 arange(seq) + past_seen_tokens",
        says="Positions are 0, 1, … and start at the cached length over a cache",
        check=gives([[0, 1, 2, 3, 4], [5, 6]], gpt2_positions),
    ),
    Fact(
        id="gpt2-1024",
        place=PE,
        quote="GPT-2 为 1024",
        says="GPT-2 has 1024 positions, and a further one is an error",
        check=lambda: default("GPT2", "n_positions") == 1024 and too_long("GPT2", "n_positions"),
    ),
    Fact(
        id="bert-512",
        place=PE,
        quote="BERT 为 512",
        says="BERT has 512 positions, and a further one is an error",
        check=lambda: default("Bert", "max_position_embeddings") == 512 and too_long("Bert", "max_position_embeddings"),
    ),
    Fact(
        id="bert-three-embeddings",
        place=PE,
        quote="BERT 还会再加 TokenTypeEmbedding,求和之后接 LayerNorm",
        says="BERT adds TokenTypeEmbedding as well, and norms the sum",
        check=bert_sum,
    ),
    Fact(
        id="additive-expansion",
        place=PE,
        quote="内容与绝对位置混在一起",
        says="Added positions enter scores as absolute ones: a shift changes GPT-2's attention, and not Llama's",
        check=lambda: shifted("GPT2") > 0.01 and shifted("Llama") < 1e-9,
    ),
)

FACTS = (*SINUSOIDAL_FACTS, *LEARNED_FACTS)
