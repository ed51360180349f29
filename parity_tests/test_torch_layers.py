"""torch's attention and its Transformer layers: every mask, both layouts, every norm order, in evaluation and in training.

Not here, as the seeds have none of it: `add_bias_kv`, `add_zero_attn`, and values of another sequence than the keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from parity_tests.harness.compare import BAR, DTYPES, largest_relative
from parity_tests.harness.shapes import unchecked
from parity_tests.harness.training import GRADIENT_BAR
from parity_tests.torch_twins import (
    Judge,
    Mask,
    carried,
    fast_path,
    filled,
    gradients_differ,
    masks,
    vectors,
)
from reference_impl.attention import MHA
from reference_impl.models.transformer import TransformerConfig, TransformerDecoderLayer, TransformerEncoderLayer
from weight_mapping import torch_layers
from weight_mapping.errors import TensorError
from weight_mapping.loading import parameters_of
from weight_mapping.plan import plan

ROWS, HEADS, D_MODEL, D_FF, EPS = 3, 4, 24, 40, 3e-4
SHORT, LONG, OTHER_WIDTH = 7, 9, 20
PRECISIONS = ("f64", "f32", "bf16")
MASKS = tuple(masks(ROWS, HEADS, SHORT, LONG))
KINDS = {"self": (SHORT, SHORT, None), "memory": (SHORT, LONG, None), "wide_memory": (SHORT, LONG, OTHER_WIDTH)}
"""Queries, keys, and the width of the memory where it is not that of the queries."""
ORDERS = {"post": False, "pre": True}
FFNS = {"relu": ("relu", True), "gelu": ("gelu", True), "relu_no_bias": ("relu", False)}
SETTINGS = [*((ffn, "f64") for ffn in FFNS), ("gelu", "f32"), ("relu", "bf16")]


@pytest.fixture
def check(request: pytest.FixtureRequest) -> Judge:
    return Judge(request)


def config(*, norm_first: bool, activation: str = "relu", bias: bool = True, dropout: float = 0.0) -> TransformerConfig:
    return TransformerConfig(
        vocab_size=0,
        d_model=D_MODEL,
        n_encoder_layers=1,
        n_decoder_layers=1,
        n_heads=HEADS,
        d_head=D_MODEL // HEADS,
        d_ff=D_FF,
        norm_eps=EPS,
        norm_first=norm_first,
        bias=bias,
        activation=activation,
        dropout=dropout,
    )


def turned(x: Tensor | None, batch_first: bool) -> Any:
    """(b, s, d) as torch wants it: the same, or (s, b, d)."""
    return x if x is None or batch_first else x.transpose(0, 1)


# Attention


@cache
def both_attentions(kind: str, precision: str, **options: Any) -> tuple[nn.MultiheadAttention, MHA]:
    """torch's attention and the reference's, with the same weights. options: bias, dropout, batch_first of torch's.

    Built once, so that whoever asks for dropout says in which mode.
    """
    width: Any = KINDS[kind][2]
    twin = filled(nn.MultiheadAttention(D_MODEL, HEADS, kdim=width, vdim=width, **options), precision)
    mine = MHA(
        d_model=D_MODEL,
        n_heads=HEADS,
        d_head=D_MODEL // HEADS,
        scale=(D_MODEL // HEADS) ** -0.5,
        bias=options.get("bias", True),
        dropout=options.get("dropout", 0.0),
        d_memory=width,
    )
    return twin, carried(twin, attention_table(kind), mine, precision)


def attention_table(kind: str) -> Any:
    return (torch_layers.attention if KINDS[kind][2] is None else torch_layers.attention_to_memory)(D_MODEL)


def attention_inputs(kind: str, precision: str) -> tuple[Tensor, Tensor | None]:
    s, t, width = KINDS[kind]
    x = vectors("x", ROWS, s, D_MODEL).to(DTYPES[precision])
    return x, None if kind == "self" else vectors("memory", ROWS, t, width or D_MODEL).to(DTYPES[precision])


def attention_mask(kind: str, name: str, precision: str) -> Mask:
    return masks(ROWS, HEADS, *KINDS[kind][:2])[name].to(DTYPES[precision])


def their_attention(
    twin: nn.MultiheadAttention, x: Tensor, memory: Tensor | None, mask: Mask, **options: Any
) -> tuple[Tensor, Tensor | None]:
    q = turned(x, twin.batch_first)
    k = q if memory is None else turned(memory, twin.batch_first)  # one tensor thrice is what the fast path asks for
    out, p = twin(q, k, k, attn_mask=mask.attn, key_padding_mask=mask.padding, is_causal=mask.causal, **options)
    return turned(out, twin.batch_first), p


@contextmanager
def seen_at(site: nn.Module) -> Iterator[list[Tensor]]:
    """What passes a site while the body runs."""
    values: list[Tensor] = []

    def keep(module: nn.Module, args: Any, value: Tensor) -> None:
        values.append(value)

    handle = site.register_forward_hook(keep)
    try:
        yield values
    finally:
        handle.remove()


def my_attention(mine: MHA, x: Tensor, memory: Tensor | None, mask: Mask) -> tuple[Tensor, Tensor]:
    """The output, and the probabilities (b, h, s, t)."""
    with seen_at(mine.probs) as p:
        y = mine(x, mask.visible, memory=memory, bias=mask.bias)
    return y, p[0]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("kind", KINDS)
def test_attention(kind: str, name: str, precision: str, check: Judge) -> None:
    x, memory = attention_inputs(kind, precision)
    mask = attention_mask(kind, name, precision)
    with torch.no_grad():
        y, p = true, true_p = my_attention(both_attentions(kind, precision)[1], x, memory, mask)
        if precision != "f64":
            exact, wide = attention_mask(kind, name, "f64"), None if memory is None else memory.double()
            with unchecked():
                true, true_p = my_attention(both_attentions(kind, "f64")[1], x.double(), wide, exact)
        for batch_first in (True, False):
            twin, _ = both_attentions(kind, precision, batch_first=batch_first)
            for fast in (True, False):
                with fast_path(fast):
                    bare, _ = their_attention(twin, x, memory, mask, need_weights=False)
                    z, averaged = their_attention(twin, x, memory, mask)
                    _, by_head = their_attention(twin, x, memory, mask, average_attn_weights=False)
                assert averaged is not None
                assert by_head is not None
                check("output", bare, y, true)
                check("output beside weights", z, y, true)
                check("weights", by_head, p, true_p)
                check("mean weights", averaged, p.mean(1), true_p.mean(1))


@pytest.mark.parametrize("kind", KINDS)
def test_attention_without_biases(kind: str, check: Judge) -> None:
    x, memory = attention_inputs(kind, "f64")
    mask = attention_mask(kind, "padding", "f64")
    twin, mine = both_attentions(kind, "f64", bias=False, batch_first=True)
    y, _ = my_attention(mine, x, memory, mask)
    check("output", their_attention(twin, x, memory, mask)[0], y)


@pytest.mark.parametrize("weights", [True, False], ids=["weights", "bare"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch_first", "sequence_first"])
@pytest.mark.parametrize("kind", KINDS)
def test_attention_in_training(kind: str, batch_first: bool, weights: bool, check: Judge) -> None:
    """Attention dropout with one RNG state. Without weights torch drops inside SDPA: on the same grid, in the same order."""
    x, memory = attention_inputs(kind, "f64")
    mask = attention_mask(kind, "bool_and_padding", "f64")
    twin, mine = both_attentions(kind, "f64", dropout=0.3, batch_first=batch_first)
    evaluated, _ = my_attention(mine.eval(), x, memory, mask)
    for side in (twin, mine):
        side.train()
    torch.manual_seed(11)
    z, _ = their_attention(twin, x, memory, mask, need_weights=weights)
    torch.manual_seed(11)
    y, _ = my_attention(mine, x, memory, mask)
    check("output", z, y)
    assert largest_relative(y, evaluated) > 0.1  # something was dropped


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", ["bool_and_padding", "float_by_head"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_attention(kind: str, name: str, training: bool) -> None:
    x, memory = attention_inputs(kind, "f64")
    inputs = {n: v.requires_grad_() for n, v in (("x", x), ("memory", memory)) if v is not None}
    mask = attention_mask(kind, name, "f64")
    twin, mine = both_attentions(kind, "f64", dropout=0.3, batch_first=True)
    for side in (twin, mine):
        side.train(training)
    torch.manual_seed(12)
    z, _ = their_attention(twin, x, memory, mask, need_weights=False)
    torch.manual_seed(12)
    y, _ = my_attention(mine, x, memory, mask)
    assert gradients_differ(twin, attention_table(kind), mine, y, z, inputs) < GRADIENT_BAR


def test_the_heads_outputs_add_up() -> None:
    """LinearOut(Concat(heads)) = sum over heads of p_h v_h W_O[h], each head with its own columns of W_O."""
    x, _ = attention_inputs("self", "f64")
    _, mine = both_attentions("self", "f64")
    with seen_at(mine.values) as values:
        y, p = my_attention(mine, x, None, attention_mask("self", "causal", "f64"))
    columns = mine.o_proj.weight.unflatten(1, (HEADS, -1))  # as (d, h, e)
    parts = [p[:, h] @ values[0][:, h] @ columns[:, h].mT for h in range(HEADS)]  # each as (b, s, d)
    added = torch.stack(parts).sum(0) + mine.o_proj.bias
    assert largest_relative(added, y) < BAR


# Layers


@cache
def both_layers(precision: str, order: str, ffn: str, *, decoder: bool, batch_first: bool, dropout: float = 0.0) -> Any:
    """torch's layer, the reference's with the same weights, and the table between them. Built once, as above."""
    activation, bias = FFNS[ffn]
    their_class, my_class, table = (
        (nn.TransformerDecoderLayer, TransformerDecoderLayer, torch_layers.decoder_layer(D_MODEL))
        if decoder
        else (nn.TransformerEncoderLayer, TransformerEncoderLayer, torch_layers.encoder_layer(D_MODEL))
    )
    twin = their_class(
        D_MODEL, HEADS, D_FF, dropout, activation, EPS, batch_first=batch_first, norm_first=ORDERS[order], bias=bias
    )
    twin = filled(twin, precision)
    mine = my_class(config(norm_first=ORDERS[order], activation=activation, bias=bias, dropout=dropout))
    return twin, carried(twin, table, mine, precision), table


def exact_layer(order: str, ffn: str, *, decoder: bool) -> Any:
    """The reference's layer in float64."""
    return both_layers("f64", order, ffn, decoder=decoder, batch_first=True)[1]


def their_encoder(twin: Any, x: Tensor, mask: Mask) -> Tensor:
    """What torch's layer makes of (b, s, d). The RNG begins anew, as for `my_encoder`."""
    batch_first = twin.self_attn.batch_first
    torch.manual_seed(21)
    z = twin(turned(x, batch_first), src_mask=mask.attn, src_key_padding_mask=mask.padding, is_causal=mask.causal)
    return turned(z, batch_first)


def my_encoder(mine: TransformerEncoderLayer, x: Tensor, mask: Mask) -> Tensor:
    torch.manual_seed(21)
    return mine(x, mask.visible, bias=mask.bias)


def their_decoder(twin: Any, x: Tensor, memory: Tensor, own: Mask, its: Mask) -> Tensor:
    """The same for a decoder's layer. own, its: the masks of self-attention and of attention to the memory."""
    batch_first = twin.self_attn.batch_first
    torch.manual_seed(22)
    z = twin(
        turned(x, batch_first),
        turned(memory, batch_first),
        tgt_mask=own.attn,
        memory_mask=its.attn,
        tgt_key_padding_mask=own.padding,
        memory_key_padding_mask=its.padding,
        tgt_is_causal=own.causal,
        memory_is_causal=its.causal,
    )
    return turned(z, batch_first)


def my_decoder(mine: TransformerDecoderLayer, x: Tensor, memory: Tensor, own: Mask, its: Mask) -> Tensor:
    torch.manual_seed(22)
    return mine(x, own.visible, memory=memory, memory_visible=its.visible, bias=own.bias, memory_bias=its.bias)


def layer_inputs(precision: str, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    x, memory = vectors("x", ROWS, SHORT, D_MODEL), vectors("memory", ROWS, LONG, D_MODEL)
    return x[:rows].to(DTYPES[precision]), memory[:rows].to(DTYPES[precision])


def dropout_in_order(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout whose draws follow the axes of `x`, however it lies in memory."""
    kept = torch.empty_like(x, memory_format=torch.contiguous_format).bernoulli_(1 - p) if training else 1 - p
    return x * kept / (1 - p)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("ffn", "precision"), SETTINGS, ids=map("-".join, SETTINGS))
@pytest.mark.parametrize("order", ORDERS)
def test_encoder_layer(order: str, ffn: str, name: str, precision: str, check: Judge) -> None:
    x, _ = layer_inputs(precision)
    mask, exact = (masks(ROWS, HEADS, SHORT, SHORT)[name].to(DTYPES[p]) for p in (precision, "f64"))
    with torch.no_grad():
        sides = {first: both_layers(precision, order, ffn, decoder=False, batch_first=first) for first in (True, False)}
        y = my_encoder(sides[True][1], x, mask)
        with unchecked():
            true = y if precision == "f64" else my_encoder(exact_layer(order, ffn, decoder=False), x.double(), exact)
        for batch_first, (twin, _, _) in sides.items():
            for fast in (False, True):
                if fast and mask.floats:
                    continue  # wrong in torch, see test_known_the_fast_path_takes_numbers_for_booleans
                with fast_path(fast):
                    z = their_encoder(twin, x, mask)
                check(f"batch_first={batch_first} fast={fast}", z, y, true)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("ffn", "precision"), SETTINGS, ids=map("-".join, SETTINGS))
@pytest.mark.parametrize("order", ORDERS)
def test_decoder_layer(order: str, ffn: str, name: str, precision: str, check: Judge) -> None:
    """Each mask once over the layer's own tokens, and once over the memory."""
    x, memory = layer_inputs(precision)
    sides = {first: both_layers(precision, order, ffn, decoder=True, batch_first=first) for first in (True, False)}
    for own_name, its_name in ((name, "padding"), ("causal", name)):
        own, its, *exact = (
            masks(ROWS, HEADS, SHORT, t)[n].to(DTYPES[p])
            for p in (precision, "f64")
            for n, t in ((own_name, SHORT), (its_name, LONG))
        )
        with torch.no_grad():
            true = y = my_decoder(sides[True][1], x, memory, own, its)
            if precision != "f64":
                with unchecked():
                    true = my_decoder(exact_layer(order, ffn, decoder=True), x.double(), memory.double(), *exact)
            for batch_first, (twin, _, _) in sides.items():
                z = their_decoder(twin, x, memory, own, its)
                check(f"{own_name} over {its_name} batch_first={batch_first}", z, y, true)


@pytest.mark.parametrize("layout", ["row", "row_sequence_first", "rows"])
@pytest.mark.parametrize("decoder", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("ffn", FFNS)
@pytest.mark.parametrize("order", ORDERS)
def test_layer_in_training(
    order: str, ffn: str, decoder: bool, layout: str, check: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every dropout on, one RNG state: equal only if each sits where torch has it, and draws when torch's does.

    torch draws in the order in which a tensor lies in memory, and its attention leaves the sequence outermost there. One
    row lies the same either way; for several, both sides are made to draw in the order of the axes.
    """
    batch_first, rows = layout != "row_sequence_first", ROWS if layout == "rows" else 1
    if layout == "rows":
        monkeypatch.setattr(nn.functional, "dropout", dropout_in_order)
    x, memory = layer_inputs("f64", rows)
    own, its = masks(ROWS, HEADS, SHORT, SHORT)["causal_and_padding"], masks(ROWS, HEADS, SHORT, LONG)["bool_and_padding"]
    own, its = (mask if rows == ROWS else mask.first_row(HEADS) for mask in (own, its))
    twin, mine, table = both_layers("f64", order, ffn, decoder=decoder, batch_first=batch_first, dropout=0.25)

    def run() -> tuple[Tensor, Tensor]:
        if decoder:
            return their_decoder(twin, x, memory, own, its), my_decoder(mine, x, memory, own, its)
        return their_encoder(twin, x, own), my_encoder(mine, x, own)

    inputs = {"x": x.requires_grad_()} | ({"memory": memory.requires_grad_()} if decoder else {})
    for side in (twin, mine):
        side.eval()
    z, evaluated = run()
    assert gradients_differ(twin, table, mine, evaluated, z, inputs) < GRADIENT_BAR
    for side in (twin, mine):
        side.train()
    z, y = run()
    check("output", z, y)
    assert largest_relative(y, evaluated) > 0.1  # something was dropped
    assert gradients_differ(twin, table, mine, y, z, inputs) < GRADIENT_BAR


def test_the_fast_path_is_taken_when_it_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that both of torch's forms are compared above."""
    calls: list[bool] = []
    kernel = getattr(torch, "_transformer_encoder_layer_fwd")  # noqa: B009

    def counted(*args: Any) -> Any:
        calls.append(True)
        return kernel(*args)

    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", counted)
    twin, _, _ = both_layers("f32", "post", "relu", decoder=False, batch_first=True)
    x, _ = layer_inputs("f32")
    mask = masks(ROWS, HEADS, SHORT, SHORT)["padding"]
    with torch.no_grad():
        for fast in (False, True):
            with fast_path(fast):
                their_encoder(twin, x, mask)
            assert len(calls) == fast


def test_a_memory_is_refused_by_a_layer_that_cannot_read_it() -> None:
    x, memory = layer_inputs("f64")
    everything = torch.ones(1, 1, 1, SHORT, dtype=torch.bool)
    with pytest.raises(ValueError, match="no attention to one"):
        exact_layer("post", "relu", decoder=False)(x, everything, memory=memory)


# Where torch is wrong: strict, so that a release that mends it is noticed


def test_known_the_fast_path_takes_numbers_for_booleans() -> None:
    """A float mask is to be added to the scores. The encoder layer's fast path hides every key whose number is not 0."""
    twin, mine, _ = both_layers("f64", "post", "relu", decoder=False, batch_first=True)
    x, _ = layer_inputs("f64")
    added = torch.where(vectors("some", SHORT, SHORT) > 0.5, 0.125, 0.0).double()
    added[:, 0] = 0
    mask = Mask(attn=added, visible=torch.ones(1, 1, 1, SHORT, dtype=torch.bool), bias=added[None, None])
    hidden = Mask(visible=(added == 0)[None, None])
    with torch.no_grad():
        with fast_path(False):
            assert largest_relative(their_encoder(twin, x, mask), my_encoder(mine, x, mask)) < BAR
        with fast_path(True):
            z = their_encoder(twin, x, mask)
        assert largest_relative(z, my_encoder(mine, x, mask)) > 1e-3
        assert largest_relative(z, my_encoder(mine, x, hidden)) < BAR


def test_known_is_causal_alone_is_refused_or_ignored() -> None:
    """`is_causal` and `tgt_is_causal` are said to apply a causal mask. Without a mask they raise; on the fast path, which
    nobody asks for, they do nothing, so that every token sees those after it.
    """
    x, memory = layer_inputs("f64")
    encoder, _, _ = both_layers("f64", "post", "relu", decoder=False, batch_first=True)
    decoder, _, _ = both_layers("f64", "post", "relu", decoder=True, batch_first=True)
    with torch.no_grad():
        with fast_path(False):
            with pytest.raises(RuntimeError, match="Need attn_mask"):
                encoder(x, is_causal=True)
            with pytest.raises(RuntimeError, match="Need attn_mask"):
                decoder(x, memory, tgt_is_causal=True)
        with fast_path(True):
            assert torch.equal(encoder(x, is_causal=True), encoder(x))
            assert torch.equal(decoder(x, memory, tgt_is_causal=True), decoder(x, memory))


# The tables


@pytest.mark.parametrize("kind", KINDS)
def test_attention_goes_back_bit_for_bit(kind: str) -> None:
    twin, mine = both_attentions(kind, "f32")
    back = plan(attention_table(kind), parameters_of(mine)).backward(parameters_of(mine))
    assert back.keys() == twin.state_dict().keys()
    assert all(torch.equal(back[name], t) for name, t in twin.state_dict().items())


@pytest.mark.parametrize("decoder", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("ffn", FFNS)
def test_layers_go_back_bit_for_bit(ffn: str, decoder: bool) -> None:
    twin, mine, table = both_layers("f32", "post", ffn, decoder=decoder, batch_first=True)
    back = plan(table, parameters_of(mine)).backward(parameters_of(mine))
    assert back.keys() == twin.state_dict().keys()
    assert all(torch.equal(back[name], t) for name, t in twin.state_dict().items())


def test_a_bias_of_keys_and_values_is_refused() -> None:
    """`add_bias_kv` appends a trained key and value, which the reference does not have."""
    _, mine = both_attentions("self", "f32")
    twin = nn.MultiheadAttention(D_MODEL, HEADS, add_bias_kv=True)
    with pytest.raises(TensorError, match="'bias_k' is unexpected"):
        plan(attention_table("self"), parameters_of(mine)).forward(twin.state_dict())
