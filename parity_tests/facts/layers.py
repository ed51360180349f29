"""R1, "Layer": token and channel mixing, and every layer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity_tests.facts import formulas as seed
from parity_tests.facts.record import Changed, Fact, default, defaults, gives, raises
from parity_tests.facts.subjects import (
    biases,
    close,
    filled,
    has,
    ids,
    internal,
    model,
    moved,
    published,
    run,
    values,
    watch,
)
from parity_tests.harness.lens import Lens

# --- token mixing and channel mixing ---


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
        rows=("T1",),
    ),
    Fact(
        id="attention-projections",
        place=MIX,
        quote="Q/K/V/O 四个投影对每个 token 单独计算 … 只有 Softmax(QK^T) @ V 在 token 之间混合",
        says="Of attention only Softmax(QK^T) @ V moves anything between tokens",
        check=mixing_needs_weights,
        rows=("T1",),
    ),
    Fact(
        id="attention-weights-shared",
        place=MIX,
        quote="同一个头内所有通道共用一组权重,不同的头则对不同的通道组使用不同的权重",
        says="Mixing weights come from the input, one set a head for all its channels, another in each head",
        check=weights_by_head,
        rows=("T1",),
    ),
    Fact(
        id="ffn-position-wise",
        place=MIX,
        quote="FFN 就是 ChannelMixer:position-wise,所有位置共享同一套权重",
        says="The FFN is position-wise, with one set of weights for all positions",
        check=lambda: position_wise("Llama", "layers.0.mlp") and position_wise("GPT2", "h.0.mlp"),
        rows=("T1",),
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
        rows=("T1",),
    ),
    Fact(
        id="mlp-mixer-fixed",
        place=MIX,
        quote="固定权重 MLPMLP-Mixer权重可学习但与输入无关,序列长度必须固定,难以做因果掩码",
        says="A Linear along the sequence takes one length only, and is not causal",
        check=fixed_length,
        rows=("T2",),
    ),
    Fact(
        id="fnet-no-parameters",
        place=MIX,
        quote="傅里叶变换FNet没有参数",
        says="FNet's mixer is the real part of the 2-D DFT and has no parameters",
        check=fnet_mixes,
        rows=("T3",),
    ),
    Fact(
        id="poolformer-no-parameters",
        place=MIX,
        quote="平均池化PoolFormer没有参数",
        says="PoolFormer's mixer is average pooling (less its input) and has no parameters",
        check=pooling_mixes,
        rows=("T4",),
    ),
    Fact(
        id="rwkv-linear",
        place=MIX,
        quote="线性 Attention / SSMRWKV、Mamba循环或卷积形式,O(n)",
        says="RWKV carries a state of one size on, however many tokens it has read",
        check=gives([1.0, 1.0], lambda: grows("Rwkv")),
        rows=("T5",),
    ),
    Fact(
        id="mamba-linear",
        place=MIX,
        quote="线性 Attention / SSMRWKV、Mamba循环或卷积形式,O(n)",
        says="So does Mamba (a Llama's cache grows with the tokens)",
        check=lambda: grows("Mamba") == [1.0, 1.0] and grows("Llama") == [2.0, 4.0],
        rows=("T5",),
    ),
    Fact(
        id="depthwise-is-token-mixing",
        place=MIX,
        quote="depthwise conv 对应 token mixing(每个通道单独在空间上卷积)",
        says="A depthwise convolution mixes places, each channel by itself",
        check=depthwise,
        rows=("T7",),
    ),
    Fact(
        id="pointwise-is-channel-mixing",
        place=MIX,
        quote="1×1 conv 对应 channel mixing(每个像素单独在通道间混合)",
        says="A 1 x 1 convolution mixes channels, each place by itself: a Linear",
        check=pointwise,
        rows=("T7",),
    ),
)

# --- torch's layers ---


def self_attended(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return layer.self_attn(x, x, x, attn_mask=mask, need_weights=False)[0]


def ff(layer: Any, x: Tensor) -> Tensor:
    return layer.linear2(F.relu(layer.linear1(x)))


def encoder_layer(norm_first: bool) -> bool:
    layer = filled(nn.TransformerEncoderLayer(12, 3, 20, batch_first=True, norm_first=norm_first))
    x = values("x", 2, 5, 12)
    if norm_first:
        z = x + self_attended(layer, seed.layer_norm(x, layer.norm1))
        y = z + ff(layer, seed.layer_norm(z, layer.norm2))
    else:
        z = seed.layer_norm(x + self_attended(layer, x), layer.norm1)
        y = seed.layer_norm(z + ff(layer, z), layer.norm2)
    return close(layer(x), y)


def decoder_layer(norm_first: bool) -> bool:
    layer = filled(nn.TransformerDecoderLayer(12, 3, 20, batch_first=True, norm_first=norm_first))
    x, memory, mask = values("x", 2, 5, 12), values("memory", 2, 7, 12), ~seed.causal(5)

    def crossed(y: Tensor) -> Tensor:
        return layer.multihead_attn(y, memory, memory, need_weights=False)[0]

    norms = [lambda y, n=n: seed.layer_norm(y, n) for n in (layer.norm1, layer.norm2, layer.norm3)]
    if norm_first:
        z1 = x + self_attended(layer, norms[0](x), mask)
        z2 = z1 + crossed(norms[1](z1))
        y = z2 + ff(layer, norms[2](z2))
    else:
        z1 = norms[0](x + self_attended(layer, x, mask))
        z2 = norms[1](z1 + crossed(z1))
        y = norms[2](z2 + ff(layer, z2))
    return close(layer(x, memory, tgt_mask=mask), y)


def signature_defaults(of: Any, *names: str) -> list[Any]:
    found = inspect.signature(of.__init__).parameters
    return [found[name].default for name in names]


def encoder_is_open() -> bool:
    """Without a mask the last token reaches the first; with src_mask it reaches itself alone."""
    layer = filled(nn.TransformerEncoderLayer(12, 3, 20, batch_first=True))
    x, mask = values("x", 1, 5, 12), nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    assert all(moved(layer, x, 4)), "it is causal by itself"
    return moved(lambda y: layer(y, src_mask=mask), x, 4) == [False] * 4 + [True]


def hint_alone(kind: str, training: bool) -> bool:
    """Whether is_causal, or tgt_is_causal, and no mask make a layer causal. Errors: RuntimeError, from torch.
    An even number of heads: torch has no fast path for odd ones.
    """
    x, memory = values("x", 1, 5, 12), values("memory", 1, 7, 12)
    if kind == "encoder":
        layer = filled(nn.TransformerEncoderLayer(12, 4, 20, dropout=0.0, batch_first=True)).train(training)
        return hides_the_future(lambda y: layer(y, is_causal=True), x)
    layer = filled(nn.TransformerDecoderLayer(12, 4, 20, dropout=0.0, batch_first=True)).train(training)
    return hides_the_future(lambda y: layer(y, memory, tgt_is_causal=True), x)


def hides_the_future(of: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Outside of the lens, under which torch leaves its fast path."""
    other = x.clone()
    other[:, -1] += 1
    with torch.no_grad():
        return torch.equal(of(other)[:, :-1], of(x)[:, :-1])


def hint_suffices(kind: str) -> bool:
    try:
        return all(hint_alone(kind, training) for training in (False, True))
    except RuntimeError:
        return False


def hint_ignored(kind: str) -> bool:
    """In training an error that asks for the mask; in evaluation, without gradients, nothing: all positions are seen."""
    return raises(RuntimeError, lambda: hint_alone(kind, True)) and not hint_alone(kind, False)


def residual_is_identity(norm_first: bool) -> bool:
    """A layer whose sublayers give nothing: does x come through untouched?"""
    layer = filled(nn.TransformerEncoderLayer(12, 3, 20, batch_first=True, norm_first=norm_first))
    for linear in (layer.self_attn.out_proj, layer.linear2):
        linear.weight.zero_()
        linear.bias.zero_()
    x = values("x", 1, 5, 12)
    return torch.equal(layer(x), x)


ENC = "R1, TransformerEncoderLayer"

ENCODER_FACTS = (
    Fact(
        id="encoder-post-ln",
        place=ENC + " · R2, 2.2 · R2, 4.3",
        quote="norm_first=False(默认,Post-LN,即原论文结构)",
        says="By default torch's encoder layer is post-LN: LayerNorm(x + MHA(x)), LayerNorm(z + FFN(z))",
        check=lambda: signature_defaults(nn.TransformerEncoderLayer, "norm_first") == [False] and encoder_layer(False),
        rows=("L1",),
    ),
    Fact(
        id="encoder-pre-ln",
        place=ENC,
        quote="norm_first=True(Pre-LN)",
        says="With norm_first=True it is pre-LN: x + MHA(LayerNorm(x)), z + FFN(LayerNorm(z))",
        check=lambda: encoder_layer(True),
        rows=("L1",),
    ),
    Fact(
        id="encoder-mha-dropout",
        place=ENC,
        quote="nn.MultiheadAttention,其 dropout 参数作用在注意力权重上",
        says="Its MHA is nn.MultiheadAttention, to which the layer's dropout is handed on",
        check=lambda: isinstance((a := nn.TransformerEncoderLayer(12, 3, 20, dropout=0.3).self_attn), nn.MultiheadAttention)
        and a.dropout == 0.3,
        rows=("L1",),
    ),
    Fact(
        id="encoder-no-causal-mask",
        place=ENC,
        quote="默认没有 CausalMask,需要通过 src_mask / is_causal 传入",
        says="It has no CausalMask by default; src_mask brings one in",
        check=encoder_is_open,
        rows=("L1",),
    ),
    Fact(
        id="encoder-is-causal-alone",
        place=ENC,
        quote="需要通过 src_mask / is_causal 传入",
        says="is_causal=True brings one in too",
        check=lambda: hint_suffices("encoder"),
        changed=Changed(
            now="it is a hint beside src_mask; alone it is an error in training, and without gradients silently no mask",
            check=lambda: hint_ignored("encoder"),
            package="torch",
        ),
        rows=("L1",),
    ),
    Fact(
        id="encoder-defaults",
        place=ENC,
        quote="dim_feedforward=2048、dropout=0.1",
        says="dim_feedforward is 2048 and dropout 0.1 by default",
        check=gives([2048, 0.1], lambda: signature_defaults(nn.TransformerEncoderLayer, "dim_feedforward", "dropout")),
        rows=("L1",),
    ),
    Fact(
        id="encoder-width-defaults",
        place=ENC,
        quote="默认 d_model=512、nhead=8",
        says="The layer has d_model=512 and nhead=8 by default",
        check=gives([512, 8], lambda: signature_defaults(nn.TransformerEncoderLayer, "d_model", "nhead")),
        changed=Changed(
            now="the layer has no default for them; nn.Transformer has these",
            check=lambda: raises(TypeError, lambda: nn.TransformerEncoderLayer())  # pyright: ignore[reportCallIssue]
            and signature_defaults(nn.Transformer, "d_model", "nhead") == [512, 8],
            package="torch",
        ),
        rows=("L1",),
    ),
    Fact(
        id="encoder-batch-second",
        place=ENC,
        quote="batch_first=False 是默认值,此时输入形状为 (seq, batch, d_model)",
        says="batch_first is False by default, which means (seq, batch, d_model)",
        check=lambda: signature_defaults(nn.TransformerEncoderLayer, "batch_first") == [False]
        and moved(lambda x: filled(nn.TransformerEncoderLayer(12, 3, 20))(x), values("x", 4, 3, 12), 1) == [False, True, False],
        rows=("L1",),
    ),
    Fact(
        id="pre-ln-identity",
        place=ENC,
        quote="Pre-LN 的残差路径是恒等映射",
        says="Pre-LN's residual path is the identity, and post-LN's is not",
        check=lambda: residual_is_identity(True) and not residual_is_identity(False),
        rows=("L1",),
    ),
)

DEC = "R1, TransformerDecoderLayer"

DECODER_FACTS = (
    Fact(
        id="decoder-post-ln",
        place=DEC + " · R2, 2.3",
        quote="z2 = LayerNorm(z1 + Dropout(MHA(z1, memory)))",
        says="By default torch's decoder layer is post-LN, in the order written",
        check=lambda: signature_defaults(nn.TransformerDecoderLayer, "norm_first") == [False] and decoder_layer(False),
        rows=("L2",),
    ),
    Fact(
        id="decoder-pre-ln",
        place=DEC,
        quote="z2 = z1 + Dropout(MHA(LayerNorm(z1), memory))",
        says="With norm_first=True it is pre-LN, in the order written; the memory is not normed again",
        check=lambda: decoder_layer(True),
        rows=("L2",),
    ),
    Fact(
        id="decoder-tgt-mask",
        place=DEC,
        quote="CausalMask 需要调用者传入 tgt_mask(可由 nn.Transformer.generate_square_subsequent_mask 生成)",
        says="The caller has to bring the CausalMask in, as tgt_mask",
        check=lambda: decoder_is_open(),
        rows=("L2",),
    ),
    Fact(
        id="decoder-is-causal-alone",
        place=DEC,
        quote="或设置 tgt_is_causal=True",
        says="Or to set tgt_is_causal=True",
        check=lambda: hint_suffices("decoder"),
        changed=Changed(
            now="it is a hint beside tgt_mask; alone it is an error in training, and without gradients silently no mask",
            check=lambda: hint_ignored("decoder"),
            package="torch",
        ),
        rows=("L2",),
    ),
    Fact(
        id="decoder-names",
        place=DEC,
        quote="三个子层分别对应 self_attn / multihead_attn / linear1+linear2,以及 norm1/2/3、dropout1/2/3",
        says="Its parts are self_attn, multihead_attn, linear1 and 2, norm1 to 3, dropout1 to 3",
        check=lambda: {"self_attn", "multihead_attn", "linear1", "linear2"}
        | {f"{part}{i}" for part in ("norm", "dropout") for i in (1, 2, 3)}
        == {name for name, _ in nn.TransformerDecoderLayer(12, 3, 20).named_children()} - {"dropout"},
        rows=("L2",),
    ),
)


def decoder_is_open() -> bool:
    layer, memory = filled(nn.TransformerDecoderLayer(12, 3, 20, batch_first=True)), values("memory", 1, 7, 12)
    x, mask = values("x", 1, 5, 12), nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    assert all(moved(lambda y: layer(y, memory), x, 4)), "it is causal by itself"
    return moved(lambda y: layer(y, memory, tgt_mask=mask), x, 4) == [False] * 4 + [True]


# --- BERT ---


def bert_in_torch() -> bool:
    """A BertLayer's weights in nn.TransformerEncoderLayer(norm_first=False), with exact GELU and eps 1e-12."""
    (seen,) = watch(model("Bert"), "encoder.layer.0", input_ids=ids(5))
    theirs = seen.module
    layer = nn.TransformerEncoderLayer(24, 4, 40, activation="gelu", layer_norm_eps=1e-12, batch_first=True).double().eval()
    a = theirs.attention.self
    state = {
        "self_attn.in_proj_weight": torch.cat([a.query.weight, a.key.weight, a.value.weight]),
        "self_attn.in_proj_bias": torch.cat([a.query.bias, a.key.bias, a.value.bias]),
    }
    for mine, part in {
        "self_attn.out_proj": theirs.attention.output.dense,
        "linear1": theirs.intermediate.dense,
        "linear2": theirs.output.dense,
        "norm1": theirs.attention.output.LayerNorm,
        "norm2": theirs.output.LayerNorm,
    }.items():
        state |= {f"{mine}.weight": part.weight, f"{mine}.bias": part.bias}
    layer.load_state_dict(state)
    with torch.no_grad():
        return close(seen.y, layer(seen.x))


def bert_decoder() -> bool:
    net = model("Bert", is_decoder=True)
    causal = moved(lambda x: net(input_ids=x).last_hidden_state, ids(5), 3)
    return causal == [False] * 3 + [True] * 2 and all(
        moved(lambda x: model("Bert")(input_ids=x).last_hidden_state, ids(5), 3)
    )


def bert_outputs() -> bool:
    """dense, residual and LayerNorm in one module, behind the attention and behind the FFN."""
    attention, first, inner, last = watch(
        model("Bert"),
        "encoder.layer.0.attention",
        "encoder.layer.0.attention.output",
        "encoder.layer.0.intermediate",
        "encoder.layer.0.output",
        input_ids=ids(5),
    )
    z = seed.layer_norm(first.module.dense(first.x) + attention.x, first.module.LayerNorm)
    y = seed.layer_norm(last.module.dense(inner.y) + z, last.module.LayerNorm)
    return close(first.y, z) and close(last.y, y)


def bert_intermediate() -> bool:
    (seen,) = watch(model("Bert"), "encoder.layer.0.intermediate", input_ids=ids(5))
    return close(seen.y, F.gelu(seen.module.dense(seen.x)))


BERT = "R1, BertLayer"

BERT_FACTS = (
    Fact(
        id="bert-layer-is-torchs",
        place=BERT,
        quote="结构与 PyTorch TransformerEncoderLayer(norm_first=False) 相同,即 Post-LN",
        says="A BertLayer's weights in TransformerEncoderLayer(norm_first=False) give its numbers",
        check=bert_in_torch,
        rows=("L3",),
    ),
    Fact(
        id="bert-attention-parts",
        place=BERT,
        quote="BertAttention = BertSelfAttention + BertSelfOutput",
        says="BertAttention is BertSelfAttention and BertSelfOutput",
        check=lambda: all(
            isinstance(part, internal("Bert", name))
            for a in (model("Bert").encoder.layer[0].attention,)
            for part, name in ((a.self, "BertSelfAttention"), (a.output, "BertSelfOutput"))
        ),
        rows=("L3",),
    ),
    Fact(
        id="bert-is-decoder",
        place=BERT,
        quote="MHA 没有 CausalMask,只有 PaddingMask,所以是双向注意力;is_decoder=True 时才使用因果掩码",
        says="BERT attends both ways, and causally only with is_decoder=True",
        check=bert_decoder,
        rows=("L3",),
    ),
    Fact(
        id="bert-output-modules",
        place=BERT,
        quote="分别放在 BertSelfOutput.dense 和 BertOutput.dense 中,与残差相加、LayerNorm 一起完成",
        says="BertSelfOutput and BertOutput hold a LinearOut, add the residual and norm",
        check=bert_outputs,
        rows=("L3",),
    ),
    Fact(
        id="bert-intermediate",
        place=BERT,
        quote="BertIntermediate(Linear + GELU)+ BertOutput(Linear)",
        says="BertIntermediate is Linear + GELU",
        check=bert_intermediate,
        rows=("L3",),
    ),
    Fact(
        id="bert-base",
        place=BERT,
        quote="BERT-base 为 d_model=768、head=12、d_ff=3072",
        says="BERT-base, the default, has d_model 768, 12 heads, d_ff 3072",
        check=defaults("Bert", hidden_size=768, num_attention_heads=12, intermediate_size=3072),
        rows=("L3",),
    ),
)

# --- GPT-2 ---


def gpt2_attention() -> bool:
    """c_attn, split into Q, K and V in this order; causal MHA; c_proj."""
    (seen,) = watch(model("GPT2"), "h.0.attn", input_ids=ids(5))
    a = seen.module
    q, k, v = (seed.heads(y, 4) for y in (seen.x @ a.c_attn.weight + a.c_attn.bias).chunk(3, -1))
    y = seed.joined(seed.attention(q, k, v, seed.causal(5)))
    return close(seen.y, y @ a.c_proj.weight + a.c_proj.bias)


def resid_dropout() -> bool:
    """In training with only this dropout on: some outputs of attention are 0, the others doubled."""
    net = model("GPT2", resid_pdrop=0.5, attn_pdrop=0.0, embd_pdrop=0.0)
    (whole,) = watch(net, "h.0.attn", input_ids=ids(5))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        (dropped,) = watch(net.train(), "h.0.attn", input_ids=ids(5))
    assert 0 < (dropped.y == 0).sum() < dropped.y.numel(), "nothing was dropped"
    return close(dropped.y, torch.where(dropped.y == 0, 0, 2 * whole.y))


def conv1d() -> bool:
    layer = filled(internal("GPT2", "Conv1D")(5, 3))  # 3 in, 5 out
    x = values("x", 2, 3)
    assert layer.weight.shape == (3, 5), f"its weight is {tuple(layer.weight.shape)}"
    return close(layer(x), F.linear(x, layer.weight.T, layer.bias))


GPT2 = "R1, GPT2Layer"

GPT2_FACTS = (
    Fact(
        id="gpt2-pre-ln",
        place=GPT2,
        quote="z = x + MHA(LayerNorm(x)) y = z + FFN(LayerNorm(z))",
        says="GPT2Block is pre-LN: x + MHA(LayerNorm(x)), z + FFN(LayerNorm(z))",
        check=lambda: isinstance(model("GPT2").h[0], internal("GPT2", "GPT2Block"))
        and isinstance(model("GPT2").h[0].ln_1, nn.LayerNorm)
        and mixers("GPT2"),
        rows=("L4",),
    ),
    Fact(
        id="gpt2-resid-dropout",
        place=GPT2,
        quote="MHA 的 LinearOut 之后还有一个 resid_dropout,即 Dropout(LinearOut(...))",
        says="Behind the attention's LinearOut stands resid_dropout",
        check=resid_dropout,
        rows=("L4",),
    ),
    Fact(
        id="gpt2-c-attn",
        place=GPT2,
        quote="c_attn 一次性算出 QKV 再 split",
        says="c_attn makes Q, K and V in one, in this order",
        check=gpt2_attention,
        rows=("L4",),
    ),
    Fact(
        id="conv1d",
        place=GPT2,
        quote="Conv1D,本质是权重转置存储的 Linear(weight 形状为 (in, out))",
        says="GPT-2's Linears are Conv1D: a Linear whose weight is stored as (in, out)",
        check=conv1d,
        rows=("L4",),
    ),
    Fact(
        id="gpt2-mlp",
        place=GPT2,
        quote="FFN 为 GPT2MLP,激活函数为 gelu_new,d_ff=4×d_model",
        says="Its FFN is GPT2MLP with gelu_new, and 4 d_model wide unless n_inner says otherwise",
        check=lambda: default("GPT2", "n_inner") is None
        and default("GPT2", "activation_function") == "gelu_new"
        and [model("GPT2", n_inner=n).h[0].mlp.c_fc.weight.shape[1] for n in (None, 40)] == [4 * 24, 40],
        rows=("L4",),
    ),
)

# --- Llama and its relatives ---


def parameters(family: str, **changes: Any) -> set[str]:
    """Names of the parameters of a layer of its kind, the last."""
    return {name for name, _ in model(family, **changes).layers[-1].named_parameters()}


def llama_norms() -> bool:
    layer = model("Llama").layers[0]
    return all(type(getattr(layer, f"{n}_layernorm")).__name__ == "LlamaRMSNorm" for n in ("input", "post_attention"))


def same_layer(family: str, path: str = "mlp") -> bool:
    """x + attention(RMSNorm(x)), then z + FFN(RMSNorm(z)), in layer 1."""
    net = model(family)
    path = path if hasattr(net.layers[1], path) else "block_sparse_moe"
    names = ("", ".input_layernorm", ".self_attn", ".post_attention_layernorm", f".{path}")
    layer, norm, token, other, channel = watch(net, *(f"layers.1{n}" for n in names), input_ids=ids(5))
    first = seed.rms_norm(layer.x, norm.module.weight, norm.module.variance_epsilon)
    z = layer.x + token.y
    second = seed.rms_norm(z, other.module.weight, other.module.variance_epsilon)
    fed = close(given(token), first) and close(channel.x.flatten(0, -2), second.flatten(0, -2))
    return fed and close(layer.y, z + channel.y)


def qwen3_without_norm() -> bool:
    """Its parameters are Llama's and two norms; and where those norm nothing away, the window is all that is new."""
    return parameters("Qwen3") - parameters("Llama") == {"self_attn.q_norm.weight", "self_attn.k_norm.weight"} and not (
        parameters("Llama") - parameters("Qwen3")
    )


def mixtral_but_for_ffn() -> bool:
    def outside(family: str) -> set[str]:
        return {n for n in parameters(family) if not n.startswith(("mlp.", "block_sparse_moe."))}

    return outside("Mixtral") == outside("Llama") and parameters("Mixtral") != parameters("Llama")


def dense_layers() -> list[str]:
    """The class of the FFN in each of five layers at the default size."""
    layers = published("DeepseekV3", num_hidden_layers=5).layers
    return [type(layer.mlp).__name__ for layer in layers]


LLAMA_FACTS = (
    Fact(
        id="llama-layer",
        place="R1, LlamaLayer · R2, 3.3 · R2, 4 · R2, 4.3",
        quote="z = x + LlamaAttention(RMSNorm(x)) y = z + GatedFFN(RMSNorm(z))",
        says="LlamaDecoderLayer is x + Attention(RMSNorm(x)), then z + GatedFFN(RMSNorm(z))",
        check=lambda: same_layer("Llama"),
        rows=("L5",),
    ),
    Fact(
        id="llama-norm-names",
        place="R1, LlamaLayer",
        quote="两个 RMSNorm 分别为 input_layernorm 和 post_attention_layernorm",
        says="The two RMSNorms are input_layernorm and post_attention_layernorm",
        check=llama_norms,
        rows=("L5",),
    ),
    Fact(
        id="llama-plain",
        place="R1, LlamaLayer · R2, 4.1",
        quote="无 bias、无 Dropout",
        says="The layer has no bias and no dropout",
        check=lambda: not biases(model("Llama").layers[0]) and not has(model("Llama").layers[0], nn.Dropout),
        rows=("L5",),
    ),
    Fact(
        id="qwen3-layer",
        place="R1, Qwen3Layer",
        quote="与 LlamaLayer 相同,只是 attention 加了 QK-Norm 和可选的滑动窗口",
        says="Qwen3's layer is Llama's, with q_norm and k_norm added",
        check=lambda: same_layer("Qwen3") and qwen3_without_norm(),
        rows=("L6",),
    ),
    Fact(
        id="mixtral-layer",
        place="R1, MixtralLayer",
        quote="把 LlamaLayer 的 GatedFFN 换成 MoE,其他不变",
        says="Mixtral's layer is Llama's with the GatedFFN replaced by MoE, and nothing else changed",
        check=lambda: same_layer("Mixtral") and mixtral_but_for_ffn(),
        rows=("L7",),
    ),
    Fact(
        id="deepseek-layer",
        place="R1, DeepseekV3Layer",
        quote="z = x + MLA(RMSNorm(x)) y = z + DeepSeekMoE(RMSNorm(z))",
        says="DeepseekV3DecoderLayer is x + MLA(RMSNorm(x)), then z + DeepSeekMoE(RMSNorm(z))",
        check=lambda: same_layer("DeepseekV3"),
        rows=("L8",),
    ),
    Fact(
        id="deepseek-first-dense",
        place="R1, DeepseekV3Layer",
        quote="first_k_dense_replace=3:前 3 层用 dense FFN,之后的层用 DeepSeekMoE",
        says="first_k_dense_replace is 3: three layers with a dense FFN, then DeepSeekMoE",
        check=lambda: default("DeepseekV3", "first_k_dense_replace") == 3
        and dense_layers() == ["DeepseekV3MLP"] * 3 + ["DeepseekV3MoE"] * 2,
        rows=("L8",),
    ),
    Fact(
        id="deepseek-dense-width",
        place="R1, DeepseekV3Layer",
        quote="layer_idx < 3 时为 GatedFFN(d_ff=18432)",
        says="The dense FFN of the first layers is 18432 wide",
        check=gives(18432, lambda: published("DeepseekV3", num_hidden_layers=1).layers[0].mlp.up_proj.out_features),
        rows=("L8",),
    ),
)

FACTS = (*MIXING_FACTS, *ENCODER_FACTS, *DECODER_FACTS, *BERT_FACTS, *GPT2_FACTS, *LLAMA_FACTS)
