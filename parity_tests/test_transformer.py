"""The original Transformer: nn.Transformer between vectors, and with embedding, positions and output around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from parity_tests.fixtures.values import around_one, bias, shifted
from parity_tests.harness.batches import padded, tokens
from parity_tests.harness.compare import DTYPES, largest_relative
from parity_tests.harness.shapes import unchecked
from parity_tests.harness.training import GRADIENT_BAR
from parity_tests.torch_twins import (
    FILL,
    Judge,
    Mask,
    carried,
    fast_path,
    filled,
    gradients_differ,
    masks,
    vectors,
)
from reference_impl.generation import generate
from reference_impl.models.transformer import Transformer, TransformerConfig, TransformerModel
from weight_mapping import torch_layers
from weight_mapping.loading import parameters_of
from weight_mapping.plan import plan

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True", "ignore:The PyTorch API of nested tensors")

ROWS, HEADS, D_MODEL, D_FF, EPS, VOCAB = 3, 4, 24, 40, 3e-4, 31
N_ENCODER, N_DECODER = 2, 3
TARGET, SOURCE = 7, 9
PRECISIONS = ("f64", "f32", "bf16")
ORDERS = {"post": False, "pre": True}
TABLE = torch_layers.transformer(D_MODEL, N_ENCODER, N_DECODER)
MODEL_TABLE = torch_layers.transformer(D_MODEL, N_ENCODER, N_DECODER, here="transformer.")


def config(order: str, *, activation: str = "relu", bias: bool = True, dropout: float = 0.0) -> TransformerConfig:
    return TransformerConfig(
        vocab_size=VOCAB,
        d_model=D_MODEL,
        n_encoder_layers=N_ENCODER,
        n_decoder_layers=N_DECODER,
        n_heads=HEADS,
        d_head=D_MODEL // HEADS,
        d_ff=D_FF,
        norm_eps=EPS,
        norm_first=ORDERS[order],
        bias=bias,
        activation=activation,
        dropout=dropout,
    )


def torchs(mine: TransformerConfig, *, batch_first: bool) -> nn.Transformer:
    return nn.Transformer(
        D_MODEL,
        HEADS,
        N_ENCODER,
        N_DECODER,
        D_FF,
        mine.dropout,
        mine.activation,
        layer_norm_eps=EPS,
        batch_first=batch_first,
        norm_first=mine.norm_first,
        bias=mine.bias,
    )


@pytest.fixture
def check(request: pytest.FixtureRequest) -> Judge:
    return Judge(request)


# Between vectors


@cache
def both(precision: str, order: str, batch_first: bool = True, **options: Any) -> tuple[nn.Transformer, Transformer]:
    """nn.Transformer and the reference's, with the same weights; built once, so that a test of dropout says in which mode."""
    how = config(order, **options)
    twin = filled(torchs(how, batch_first=batch_first), precision)
    return twin, carried(twin, TABLE, Transformer(how), precision)


MASKINGS = {
    "none": ("none", "none", "none"),
    "usual": ("padding", "causal_and_padding", "padding"),
    "unsaid": ("padding", "causal_unsaid", "padding"),
    "causal_source": ("causal_float", "causal_float", "causal"),
    "barred": ("bool_and_padding", "bool_by_head_and_padding", "bool_by_head"),
    "added": ("float", "float_and_padding_float", "float_by_head"),
    "added_by_head": ("float_by_head_and_padding_float", "float_by_head", "padding_float"),
}
"""How the source sees itself, the target itself, and the target the memory."""


def masking(name: str, precision: str) -> tuple[Mask, Mask, Mask]:
    sizes = ((SOURCE, SOURCE), (TARGET, TARGET), (TARGET, SOURCE))
    src, tgt, memory = (masks(ROWS, HEADS, *n)[m].to(DTYPES[precision]) for m, n in zip(MASKINGS[name], sizes, strict=True))
    return src, tgt, memory


def inputs(precision: str) -> tuple[Tensor, Tensor]:
    src, tgt = (vectors(n, ROWS, s, D_MODEL).to(DTYPES[precision]) for n, s in (("src", SOURCE), ("tgt", TARGET)))
    return src, tgt


def theirs(twin: nn.Transformer, src: Tensor, tgt: Tensor, how: tuple[Mask, Mask, Mask]) -> Tensor:
    own, tgts, its = how
    if not twin.batch_first:
        src, tgt = src.transpose(0, 1), tgt.transpose(0, 1)
    y = twin(
        src,
        tgt,
        src_mask=own.attn,
        tgt_mask=tgts.attn,
        memory_mask=its.attn,
        src_key_padding_mask=own.padding,
        tgt_key_padding_mask=tgts.padding,
        memory_key_padding_mask=its.padding,
        src_is_causal=own.causal or None,  # None: find out
        tgt_is_causal=tgts.causal or None,
        memory_is_causal=its.causal,
    )
    return y if twin.batch_first else y.transpose(0, 1)


def ours(mine: Transformer, src: Tensor, tgt: Tensor, how: tuple[Mask, Mask, Mask]) -> Tensor:
    own, tgts, its = how
    return mine(
        src,
        tgt,
        src_visible=own.visible,
        visible=tgts.visible,
        memory_visible=its.visible,
        src_bias=own.bias,
        bias=tgts.bias,
        memory_bias=its.bias,
    )


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MASKINGS)
@pytest.mark.parametrize("order", ORDERS)
def test_transformer(order: str, name: str, precision: str, check: Judge) -> None:
    src, tgt = inputs(precision)
    how, exact = masking(name, precision), masking(name, "f64")
    with torch.no_grad():
        true = y = ours(both(precision, order)[1], src, tgt, how)
        if precision != "f64":
            with unchecked():
                true = ours(both("f64", order)[1], src.double(), tgt.double(), exact)
        for batch_first in (True, False):
            twin, _ = both(precision, order, batch_first)
            for fast in (True, False):
                if fast and how[0].floats:
                    continue  # wrong in torch, see test_torch_layers
                with fast_path(fast):
                    z = theirs(twin, src, tgt, how)
                check("output", z, y, true)


@pytest.mark.parametrize("options", [{"activation": "gelu"}, {"bias": False}], ids=["gelu", "no_bias"])
def test_what_else_a_transformer_may_be(options: dict[str, Any], check: Judge) -> None:
    src, tgt = inputs("f64")
    twin, mine = both("f64", "post", **options)
    y = ours(mine, src, tgt, masking("usual", "f64"))
    check("output", theirs(twin, src, tgt, masking("usual", "f64")), y)


def test_padding_that_torch_takes_away(monkeypatch: pytest.MonkeyPatch, check: Judge) -> None:
    """With padding alone, and to the right, torch's encoder packs the real tokens of all rows, and puts zeros back."""
    packed: list[bool] = []
    pack = getattr(torch, "_nested_tensor_from_mask")  # noqa: B009

    def counted(*args: Any, **kwargs: Any) -> Any:
        packed.append(True)
        return pack(*args, **kwargs)

    monkeypatch.setattr(torch, "_nested_tensor_from_mask", counted)
    src, _ = inputs("f64")
    own = masking("usual", "f64")[0]
    real = own.visible[:, 0, 0]
    twin, mine = both("f64", "post")
    with torch.no_grad(), fast_path(True):
        z = twin.encoder(src, src_key_padding_mask=own.padding)
        y = mine.encoder(src, own.visible)
    assert packed
    check("output", z[real], y[real])


def test_the_final_norms_are_there_after_post_norm_layers() -> None:
    """nn.Transformer's own, which the paper does not have: without them another function."""
    src, tgt = inputs("f64")
    how = masking("usual", "f64")
    twin, mine = both("f64", "post")
    full = theirs(twin, src, tgt, how)
    bare = Transformer(config("post")).double()
    bare.load_state_dict(mine.state_dict())
    for part in (bare.encoder, bare.decoder):
        handle = part.norm.register_forward_hook(lambda module, args, y: args[0])
        assert largest_relative(ours(bare, src, tgt, how), full) > 1e-2
        handle.remove()


@pytest.mark.parametrize("batch_first", [True, False], ids=["batch_first", "sequence_first"])
@pytest.mark.parametrize("order", ORDERS)
def test_transformer_in_training(order: str, batch_first: bool, check: Judge) -> None:
    """All dropouts on, one RNG state, in one row, which lies alike in both layouts (see test_torch_layers)."""
    src, tgt = (x[:1].requires_grad_() for x in inputs("f64"))
    own, tgts, its = (mask.first_row(HEADS) for mask in masking("usual", "f64"))
    twin, mine = both("f64", order, batch_first, dropout=0.2)
    outputs = []
    for training in (False, True):
        twin.train(training)
        torch.manual_seed(31)
        z = theirs(twin, src, tgt, (own, tgts, its))
        mine.train(training)
        torch.manual_seed(31)
        y = ours(mine, src, tgt, (own, tgts, its))
        check("output", z, y)
        assert gradients_differ(twin, TABLE, mine, y, z, {"src": src, "tgt": tgt}) < GRADIENT_BAR
        outputs.append(y)
    assert largest_relative(outputs[1], outputs[0]) > 0.1  # something was dropped


def test_transformer_goes_back_bit_for_bit() -> None:
    twin, mine = both("f32", "pre")
    back = plan(TABLE, parameters_of(mine)).backward(parameters_of(mine))
    assert back.keys() == twin.state_dict().keys()
    assert all(torch.equal(back[name], t) for name, t in twin.state_dict().items())


# From ids to logits


class Twin(nn.Module):
    """What a user of nn.Transformer adds: a scaled embedding, the table of sines, dropout, and the embedding as output."""

    def __init__(self, mine: TransformerConfig):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, D_MODEL)
        self.transformer = torchs(mine, batch_first=True)
        self.dropout = nn.Dropout(mine.dropout)

    def embedded(self, ids: Tensor) -> Tensor:
        table = torch.empty(ids.shape[1], D_MODEL, dtype=torch.float64)
        for position in range(ids.shape[1]):
            for i in range(D_MODEL // 2):
                angle = position / 10000 ** (2 * i / D_MODEL)
                table[position, 2 * i], table[position, 2 * i + 1] = math.sin(angle), math.cos(angle)
        return self.dropout(self.embed(ids) * math.sqrt(D_MODEL) + table.to(self.embed.weight.dtype))

    def forward(self, src: Tensor, tgt: Tensor, real: Tensor | None = None) -> Tensor:
        ahead = torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool).triu(1)
        padding = None if real is None else ~real
        memory = self.transformer.encoder(self.embedded(src), src_key_padding_mask=padding)
        y = self.transformer.decoder(self.embedded(tgt), memory, tgt_mask=ahead, memory_key_padding_mask=padding)
        return nn.functional.linear(y, self.embed.weight)


def faint(name: str, shape: Sequence[int]) -> Tensor:
    return bias(name, shape) / 8


TALKATIVE = (
    ("*decoder.norm.weight", shifted(around_one, -2)),  # below 0, as an output tied to the input likes to repeat itself
    ("*bias", faint),  # and with strong ones it says one word for ever
    *FILL,
)


@cache
def both_models(precision: str, order: str, dropout: float = 0.0) -> tuple[Twin, TransformerModel]:
    how = config(order, dropout=dropout)
    twin = filled(Twin(how), precision, TALKATIVE)
    return twin, carried(twin, MODEL_TABLE, TransformerModel(how), precision)


SRC = tokens("transformer's source", (ROWS, SOURCE), VOCAB)
TGT = tokens("transformer's target", (ROWS, TARGET), VOCAB)
REAL = padded(SRC, [(0, 0), (0, 4), (0, 1)])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("order", ORDERS)
def test_model(order: str, precision: str, check: Judge) -> None:
    twin, mine = both_models(precision, order)
    _, oracle = both_models("f64", order)
    with torch.no_grad():
        for real in (None, REAL):
            z, y, true = twin(SRC, TGT, real), *(m(TGT, source=SRC, source_real=real) for m in (mine, oracle))
            check("output", z, y, true)


@pytest.mark.parametrize("sizes", [(1,) * TARGET, (3, 1, 1, 2)], ids=["steps", "chunks"])
@pytest.mark.parametrize("order", ORDERS)
def test_one_pass_equals_step_by_step(order: str, sizes: tuple[int, ...], check: Judge) -> None:
    """Teacher forcing reads the target at once; decoding reads it in steps, and neither source nor memory again."""
    _, mine = both_models("f64", order)
    encoded: list[bool] = []
    handle = mine.encoder.register_forward_hook(lambda module, args, memory: encoded.append(True))
    with torch.no_grad():
        whole = mine(TGT, source=SRC, source_real=REAL)
        held = mine.new_cache()
        steps = [mine(part, source=SRC, source_real=REAL, cache=held) for part in TGT.split(list(sizes), -1)]
    handle.remove()
    check("output", torch.cat(steps, 1), whole)
    assert len(encoded) == 2  # once for the pass, once for all steps
    own = [layer.length for layer in held.layers]
    over_memory = [layer.memory.length for layer in held.layers if layer.memory is not None]
    assert (own, over_memory) == ([TARGET] * N_DECODER, [SOURCE] * N_DECODER)


@pytest.mark.parametrize("precision", ["f64", "f32"])
@pytest.mark.parametrize("order", ORDERS)
def test_greedy(order: str, precision: str) -> None:
    """The same words, whether each is read once or, as nn.Transformer has no cache, all again for the next."""
    twin, mine = both_models(precision, order)
    n_new, ids = 12, TGT[:, :1]
    with torch.no_grad():
        for _ in range(n_new):
            ids = torch.cat([ids, twin(SRC, ids, REAL)[:, -1:].argmax(-1)], -1)
    with unchecked():
        found = generate(mine, TGT[:, :1], n_new=n_new, source=SRC, source_real=REAL).tokens
    assert found.tolist() == ids[:, 1:].tolist()
    assert len(set(found.flatten().tolist())) > 3  # they say something


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("order", ORDERS)
def test_gradients_of_the_model(order: str, training: bool, check: Judge) -> None:
    """Of the shared embedding too, which is read twice and written with. In training with the input's dropout, one row."""
    twin, mine = both_models("f64", order, dropout=0.2)
    src, tgt, real = SRC[1:2], TGT[1:2], REAL[1:2]
    for side in (twin, mine):
        side.train(training)
    torch.manual_seed(33)
    z = twin(src, tgt, real)
    torch.manual_seed(33)
    y = mine(tgt, source=src, source_real=real)
    check("output", z, y)
    assert gradients_differ(twin, MODEL_TABLE, mine, y, z, {}) < GRADIENT_BAR
