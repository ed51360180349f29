"""R1, "Token Mixing 与 Channel Mixing"."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity_tests.facts import formulas as seed
from parity_tests.facts.record import Fact, gives, raises
from parity_tests.facts.subjects import close, filled, ids, internal, model, moved, run, values, watch
from parity_tests.harness.lens import Lens


def mixing_needs_weights() -> bool:
    """An attention whose queries see themselves alone moves nothing between tokens; one that sees all does."""
    mha, x = filled(nn.MultiheadAttention(12, 3, batch_first=True)), values("x", 1, 5, 12)
    alone = ~torch.eye(5, dtype=torch.bool)
    own = moved(lambda y: mha(y, y, y, attn_mask=alone)[0], x, 2)
    return own == [i == 2 for i in range(5)] and all(moved(lambda y: mha(y, y, y)[0], x, 2))


def weights_by_head() -> bool:
    """One set of weights a head, for all its channels; other heads have others; other inputs give others."""
    mha, x = filled(nn.MultiheadAttention(12, 3, batch_first=True)), values("x", 1, 5, 12)
    y, probs = mha(x, x, x, average_attn_weights=False)
    v = seed.heads(F.linear(x, mha.in_proj_weight[24:], mha.in_proj_bias[24:]), 3)
    other = mha(x * 2, x * 2, x * 2, average_attn_weights=False)[1]
    assert not torch.allclose(probs[:, 0], probs[:, 1], rtol=0.1), "the heads weigh alike"
    assert not torch.allclose(probs, other, rtol=0.1), "the input does not matter"
    return close(y, mha.out_proj(seed.joined(probs @ v)))


def position_wise(family: str, path: str) -> bool:
    """A token's output, alone, is what it is among others, wherever it stands."""
    (seen,) = watch(model(family), path, input_ids=ids(5))
    with Lens():
        alone = torch.cat([seen.module(token[None]) for token in seen.x[0].split(1)], 1)
    return close(alone, seen.y)


def fnet_mixes() -> bool:
    """The Fourier transform is all of it: real part of the two-dimensional DFT, and nothing to learn."""
    net = model("FNet")
    (seen,) = watch(net, "encoder.layer.0.fourier.self", input_ids=ids(5))
    assert not list(seen.module.parameters()), "it has parameters"
    return close(seen.y, torch.fft.fftn(seen.x, dim=(-2, -1)).real)


def pooling_mixes() -> bool:
    pool = internal("PoolFormer", "PoolFormerPooling")(3)
    x = values("image", 1, 2, 5, 5)
    assert not list(pool.parameters()), "it has parameters"
    return close(pool(x), F.avg_pool2d(x, 3, 1, 1, count_include_pad=False) - x)


def fixed_length() -> bool:
    """A Linear along the sequence takes one length, and lets the future through unless half of it is cut away."""
    mix, x = filled(nn.Linear(5, 5)), values("x", 1, 5, 12)

    def mixed(y: Tensor) -> Tensor:
        return mix(y.mT).mT

    return raises(RuntimeError, lambda: mixed(values("x", 1, 6, 12))) and moved(mixed, x, 4)[0]


def state_sizes(family: str) -> list[int]:
    """Numbers that a model carries on after 3, 6 and 12 tokens."""

    def numbers(value: Any) -> int:
        if isinstance(value, Tensor):
            return value.numel()
        if isinstance(value, dict):
            return sum(map(numbers, value.values()))
        if isinstance(value, list | tuple):
            return sum(map(numbers, value))
        return numbers(vars(value)) if hasattr(value, "__dict__") else 0

    found = []
    for length in (3, 6, 12):
        out = run(model(family), input_ids=ids(length), use_cache=True)
        state = next(out[name] for name in ("state", "cache_params", "cache", "past_key_values") if name in out)
        found.append(numbers(state))
    assert found[0] > 0, "nothing is carried on"
    return found


def grows(family: str) -> list[float]:
    first, *others = state_sizes(family)
    return [other / first for other in others]


def depthwise() -> bool:
    """One kernel a channel: a channel's output hangs on that channel alone, and on the neighbouring places."""
    conv, x = filled(nn.Conv1d(4, 4, 3, padding=1, groups=4)), values("x", 1, 4, 6)
    assert moved(conv, x, 1) == [False, True, False, False], "channels mix"
    return moved(lambda y: conv(y.mT).mT, x.mT.contiguous(), 3) == [False, False, True, True, True, False]


def pointwise() -> bool:
    """A 1 x 1 convolution is a Linear at every place."""
    conv, x = filled(nn.Conv1d(4, 3, 1)), values("x", 1, 4, 6)
    return close(conv(x).mT, F.linear(x.mT, conv.weight[..., 0], conv.bias))


def mixers(family: str) -> bool:
    """z = x + TokenMixer(Norm(x)), y = z + ChannelMixer(Norm(z)), with what the layer calls its parts."""
    paths = {
        "Llama": ("layers.1", ".input_layernorm", ".self_attn", ".post_attention_layernorm", ".mlp"),
        "GPT2": ("h.1", ".ln_1", ".attn", ".ln_2", ".mlp"),
    }[family]
    layer, norm, token, other, channel = watch(
        model(family), paths[0], *(paths[0] + part for part in paths[1:]), input_ids=ids(5)
    )
    z = layer.x + token.y
    return (
        close(norm.x, layer.x)
        and torch.equal(given(token), norm.y)
        and close(other.x, z)
        and torch.equal(channel.x, other.y)
        and close(layer.y, z + channel.y)
    )


def given(seen: Any) -> Tensor:
    return seen.kwargs.get("hidden_states", seen.args[0] if seen.args else None)


MIX = "R1, Token Mixing 与 Channel Mixing"

MIXING_FACTS = (
    Fact(
        id="metaformer-form",
        place=MIX,
        quote="z = x + TokenMixer(Norm(x)) … y = z + ChannelMixer(Norm(z))",
        says="Llama's and GPT-2's layers are x + TokenMixer(Norm(x)), then z + ChannelMixer(Norm(z))",
        check=lambda: mixers("Llama") and mixers("GPT2"),
    ),
    Fact(
        id="attention-projections",
        place=MIX,
        quote="Q/K/V/O 四个投影对每个 token 单独计算 … 只有 Softmax(QK^T) @ V 在 token 之间混合",
        says="Of attention only Softmax(QK^T) @ V moves anything between tokens",
        check=mixing_needs_weights,
    ),
    Fact(
        id="attention-weights-shared",
        place=MIX,
        quote="同一个头内所有通道共用一组权重,不同的头则对不同的通道组使用不同的权重",
        says="Mixing weights come from the input, one set a head for all its channels, another in each head",
        check=weights_by_head,
    ),
    Fact(
        id="ffn-position-wise",
        place=MIX,
        quote="FFN 就是 ChannelMixer:position-wise,所有位置共享同一套权重",
        says="The FFN is position-wise, with one set of weights for all positions",
        check=lambda: position_wise("Llama", "layers.0.mlp") and position_wise("GPT2", "h.0.mlp"),
    ),
    Fact(
        id="attention-quadratic",
        place=MIX,
        quote="Softmax AttentionTransformer数据相关,O(n²)",
        says="Softmax attention is O(n^2): twice the tokens, four times the weights",
        check=gives(
            4.0,
            lambda: run(model("GPT2"), input_ids=ids(10), output_attentions=True).attentions[0].numel()
            / run(model("GPT2"), input_ids=ids(5), output_attentions=True).attentions[0].numel(),
        ),
    ),
    Fact(
        id="mlp-mixer-fixed",
        place=MIX,
        quote="固定权重 MLPMLP-Mixer权重可学习但与输入无关,序列长度必须固定,难以做因果掩码",
        says="A Linear along the sequence takes one length only, and is not causal",
        check=fixed_length,
    ),
    Fact(
        id="fnet-no-parameters",
        place=MIX,
        quote="傅里叶变换FNet没有参数",
        says="FNet's mixer is the real part of the 2-D DFT and has no parameters",
        check=fnet_mixes,
    ),
    Fact(
        id="poolformer-no-parameters",
        place=MIX,
        quote="平均池化PoolFormer没有参数",
        says="PoolFormer's mixer is average pooling (less its input) and has no parameters",
        check=pooling_mixes,
    ),
    Fact(
        id="rwkv-linear",
        place=MIX,
        quote="线性 Attention / SSMRWKV、Mamba循环或卷积形式,O(n)",
        says="RWKV carries a state of one size on, however many tokens it has read",
        check=gives([1.0, 1.0], lambda: grows("Rwkv")),
    ),
    Fact(
        id="mamba-linear",
        place=MIX,
        quote="线性 Attention / SSMRWKV、Mamba循环或卷积形式,O(n)",
        says="So does Mamba (a Llama's cache grows with the tokens)",
        check=lambda: grows("Mamba") == [1.0, 1.0] and grows("Llama") == [2.0, 4.0],
    ),
    Fact(
        id="depthwise-is-token-mixing",
        place=MIX,
        quote="depthwise conv 对应 token mixing(每个通道单独在空间上卷积)",
        says="A depthwise convolution mixes places, each channel by itself",
        check=depthwise,
    ),
    Fact(
        id="pointwise-is-channel-mixing",
        place=MIX,
        quote="1×1 conv 对应 channel mixing(每个像素单独在通道间混合)",
        says="A 1 x 1 convolution mixes channels, each place by itself: a Linear",
        check=pointwise,
    ),
)

FACTS = (*MIXING_FACTS,)
