"""R1, "TransformerEncoderLayer" and "TransformerDecoderLayer"."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity_tests.facts import formulas as seed
from parity_tests.facts.record import Changed, Fact, gives, raises
from parity_tests.facts.subjects import close, filled, moved, values


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


def encoder_dropouts() -> bool:
    """LayerNorm(x + Dropout(MHA(x))) and LayerNorm(z + Dropout(FFN(z))) in training, from one state of the generator."""
    layer = filled(nn.TransformerEncoderLayer(12, 3, 20, dropout=0.5, batch_first=True)).train()
    x = values("x", 2, 5, 12)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = layer(x)
        torch.manual_seed(0)
        z = layer.norm1(x + F.dropout(self_attended(layer, x), 0.5))
        inner = F.dropout(F.relu(layer.linear1(z)), 0.5)
        y = layer.norm2(z + F.dropout(layer.linear2(inner), 0.5))
    assert not torch.equal(found, layer.eval()(x)), "nothing was dropped"
    return close(found, y)


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
    ),
    Fact(
        id="encoder-pre-ln",
        place=ENC,
        quote="norm_first=True(Pre-LN)",
        says="With norm_first=True it is pre-LN: x + MHA(LayerNorm(x)), z + FFN(LayerNorm(z))",
        check=lambda: encoder_layer(True),
    ),
    Fact(
        id="encoder-dropouts",
        place=ENC,
        quote="z = LayerNorm(x + Dropout(MHA(x))) y = LayerNorm(z + Dropout(FFN(z)))",
        says="Both sublayers' outputs pass a dropout before they are added",
        check=encoder_dropouts,
    ),
    Fact(
        id="encoder-mha-dropout",
        place=ENC,
        quote="nn.MultiheadAttention,其 dropout 参数作用在注意力权重上",
        says="Its MHA is nn.MultiheadAttention, to which the layer's dropout is handed on",
        check=lambda: isinstance((a := nn.TransformerEncoderLayer(12, 3, 20, dropout=0.3).self_attn), nn.MultiheadAttention)
        and a.dropout == 0.3,
    ),
    Fact(
        id="encoder-no-causal-mask",
        place=ENC,
        quote="默认没有 CausalMask,需要通过 src_mask / is_causal 传入",
        says="It has no CausalMask by default; src_mask brings one in",
        check=encoder_is_open,
    ),
    Fact(
        id="encoder-is-causal-alone",
        place=ENC,
        quote="需要通过 src_mask / is_causal 传入",
        says="is_causal=True alone makes torch's encoder layer causal",
        check=lambda: hint_suffices("encoder"),
        changed=Changed(
            now="it is a hint beside src_mask; alone it is an error in training, and without gradients silently no mask",
            check=lambda: hint_ignored("encoder"),
            package="torch",
        ),
    ),
    Fact(
        id="encoder-defaults",
        place=ENC,
        quote="dim_feedforward=2048、dropout=0.1",
        says="dim_feedforward is 2048 and dropout 0.1 by default",
        check=gives([2048, 0.1], lambda: signature_defaults(nn.TransformerEncoderLayer, "dim_feedforward", "dropout")),
    ),
    Fact(
        id="encoder-width-defaults",
        place=ENC,
        quote="默认 d_model=512、nhead=8",
        says="TransformerEncoderLayer has d_model=512 and nhead=8 by default",
        check=gives([512, 8], lambda: signature_defaults(nn.TransformerEncoderLayer, "d_model", "nhead")),
        changed=Changed(
            now="the layer has no default for them; nn.Transformer has these",
            check=lambda: raises(TypeError, lambda: nn.TransformerEncoderLayer())  # pyright: ignore[reportCallIssue]
            and signature_defaults(nn.Transformer, "d_model", "nhead") == [512, 8],
            package="torch",
        ),
    ),
    Fact(
        id="encoder-batch-second",
        place=ENC,
        quote="batch_first=False 是默认值,此时输入形状为 (seq, batch, d_model)",
        says="batch_first is False by default, which means (seq, batch, d_model)",
        check=lambda: signature_defaults(nn.TransformerEncoderLayer, "batch_first") == [False]
        and moved(lambda x: filled(nn.TransformerEncoderLayer(12, 3, 20))(x), values("x", 4, 3, 12), 1) == [False, True, False],
    ),
    Fact(
        id="pre-ln-identity",
        place=ENC,
        quote="Pre-LN 的残差路径是恒等映射",
        says="Pre-LN's residual path is the identity, and post-LN's is not",
        check=lambda: residual_is_identity(True) and not residual_is_identity(False),
    ),
)

DEC = "R1, TransformerDecoderLayer"


def decoder_is_open() -> bool:
    layer, memory = filled(nn.TransformerDecoderLayer(12, 3, 20, batch_first=True)), values("memory", 1, 7, 12)
    x, mask = values("x", 1, 5, 12), nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    assert all(moved(lambda y: layer(y, memory), x, 4)), "it is causal by itself"
    return moved(lambda y: layer(y, memory, tgt_mask=mask), x, 4) == [False] * 4 + [True]


DECODER_FACTS = (
    Fact(
        id="decoder-post-ln",
        place=DEC + " · R2, 2.3",
        quote="z2 = LayerNorm(z1 + Dropout(MHA(z1, memory)))",
        says="By default torch's decoder layer is post-LN, in the order written",
        check=lambda: signature_defaults(nn.TransformerDecoderLayer, "norm_first") == [False] and decoder_layer(False),
    ),
    Fact(
        id="decoder-pre-ln",
        place=DEC,
        quote="z2 = z1 + Dropout(MHA(LayerNorm(z1), memory))",
        says="With norm_first=True it is pre-LN, in the order written; the memory is not normed again",
        check=lambda: decoder_layer(True),
    ),
    Fact(
        id="decoder-tgt-mask",
        place=DEC,
        quote="CausalMask 需要调用者传入 tgt_mask(可由 nn.Transformer.generate_square_subsequent_mask 生成)",
        says="The caller has to bring the CausalMask in, as tgt_mask",
        check=decoder_is_open,
    ),
    Fact(
        id="decoder-is-causal-alone",
        place=DEC,
        quote="或设置 tgt_is_causal=True",
        says="tgt_is_causal=True alone makes torch's decoder layer causal",
        check=lambda: hint_suffices("decoder"),
        changed=Changed(
            now="it is a hint beside tgt_mask; alone it is an error in training, and without gradients silently no mask",
            check=lambda: hint_ignored("decoder"),
            package="torch",
        ),
    ),
    Fact(
        id="decoder-names",
        place=DEC,
        quote="三个子层分别对应 self_attn / multihead_attn / linear1+linear2,以及 norm1/2/3、dropout1/2/3",
        says="Its parts are self_attn, multihead_attn, linear1 and 2, norm1 to 3, dropout1 to 3",
        check=lambda: {"self_attn", "multihead_attn", "linear1", "linear2"}
        | {f"{part}{i}" for part in ("norm", "dropout") for i in (1, 2, 3)}
        == {name for name, _ in nn.TransformerDecoderLayer(12, 3, 20).named_children()} - {"dropout"},
    ),
)


FACTS = (*ENCODER_FACTS, *DECODER_FACTS)
