"""Departures of the blocks of the original Transformer, which BERT, GPT-2, BART and Marian share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity_tests.families.deviations import Change, bare_bias, constant, each, forward_of
from parity_tests.harness.record import Deviation
from reference_impl.attention import MHA
from reference_impl.embedding import LearnedPositions
from reference_impl.ffn import FFN, gelu_tanh
from reference_impl.layer import TransformerLayer
from reference_impl.norm import LayerNorm


def within(deviations: Iterable[Deviation], variants: tuple[str, ...]) -> tuple[Deviation, ...]:
    """The same, of some variants."""
    return tuple(replace(deviation, variants=variants) for deviation in deviations)


# --- LayerNorm ---


def _eps_outside(self: LayerNorm, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    y = centred / ((centred * centred).mean(-1, keepdim=True).sqrt() + self.eps) * self.weight
    return y if self.bias is None else y + self.bias


def _mean_kept(self: LayerNorm, x: Tensor) -> Tensor:
    y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.weight
    return y if self.bias is None else y + self.bias


def _unbiased(self: LayerNorm, x: Tensor) -> Tensor:
    y = (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + self.eps) * self.weight
    return y if self.bias is None else y + self.bias


def layer_norm(site: str, *, configured: bool) -> tuple[Deviation, ...]:
    """site: where the first norm of the model is. configured: whether its eps is not PyTorch's."""
    eps = Deviation(name="eps is 1e-5 whatever the config says", site=site, apply=each(LayerNorm, constant("eps", 1e-5)))
    return (
        Deviation(name="eps added outside the root", site=site, apply=forward_of(LayerNorm, _eps_outside)),
        *((eps,) if configured else ()),
        Deviation(name="the mean stays in, as in RMSNorm", site=site, apply=forward_of(LayerNorm, _mean_kept)),
        Deviation(name="variance divided by d - 1", site=site, apply=forward_of(LayerNorm, _unbiased)),
        Deviation(name="bias of the norms dropped", site=site, apply=each(LayerNorm, constant("bias", None))),
    )


# --- MHA ---


def _projections_swapped(one: str, other: str) -> Callable[[Any], None]:
    def change(module: MHA) -> None:
        first, second = getattr(module, one), getattr(module, other)
        setattr(module, one, second)
        setattr(module, other, first)

    return change


def _split_by_head(module: MHA) -> None:
    """The rows of q, k and v, one after the other, read as those of the first head's q, k and v, then of the second's."""
    names, heads = ("q_proj", "k_proj", "v_proj"), module.n_heads
    for part in ("weight", "bias"):
        whole = torch.cat([getattr(getattr(module, name), part).detach() for name in names])
        by_head = whole.unflatten(0, (heads, len(names), -1))
        for i, name in enumerate(names):
            rows = nn.Parameter(by_head[:, i].flatten(0, 1), requires_grad=False)
            setattr(getattr(module, name), part, rows)


def _not_transposed(module: MHA) -> None:
    module.o_proj.weight = nn.Parameter(module.o_proj.weight.detach().T.contiguous(), requires_grad=False)


def rescaled(scale: Callable[[MHA], float]) -> Change:
    """Scores multiplied with another number, made of the module."""
    return each(MHA, lambda module: setattr(module, "scale", scale(module)))


def attention(*, queries: str, keys: str, biases: str, output: str, scaled: tuple[str, ...] = ("*",)) -> tuple[Deviation, ...]:
    """queries, keys: the sites that show those first; biases: that of q and v; output: that of the whole. scaled: variants
    that scale scores by 1 / sqrt(d_head).
    """
    swapped = _projections_swapped
    return (
        Deviation(name="scores are not scaled", site="attn.probs", apply=rescaled(lambda m: 1.0), variants=scaled),
        Deviation(
            name="scale from d_model instead of d_head",
            site="attn.probs",
            apply=rescaled(lambda m: m.scale * m.n_heads**-0.5),
            variants=scaled,
        ),
        Deviation(name="queries and keys swapped", site=queries, apply=each(MHA, swapped("q_proj", "k_proj"))),
        Deviation(name="keys and values swapped", site=keys, apply=each(MHA, swapped("k_proj", "v_proj"))),
        Deviation(name="bias of q and v dropped", site=biases, apply=each(MHA, bare_bias("q_proj", "v_proj"))),
        Deviation(name="bias of the output projection dropped", site=output, apply=each(MHA, bare_bias("o_proj"))),
        Deviation(name="the output projection is not transposed", site=output, apply=each(MHA, _not_transposed)),
    )


def joined_qkv(site: str) -> Deviation:
    """Of a layout that stores q, k and v side by side."""
    return Deviation(name="q, k and v joined head by head", site=site, apply=each(MHA, _split_by_head))


# --- attention to a memory ---


def _of_cross(change: Callable[[Any], None]) -> Change:
    """Change attention to the memory, and leave the other."""

    def apply(root: nn.Module) -> None:
        for layer in list(root.modules()):
            if isinstance(layer, TransformerLayer) and layer.cross is not None:
                change(layer.cross)

    return apply


def _seeing_everything(module: MHA) -> None:
    forward = module.forward
    module.forward = lambda x, visible, **given: forward(x, torch.ones_like(visible), **given)


def _reading_itself(module: Any) -> None:
    """Keys and values of the text instead of the memory, begun again where it is the shorter of the two."""
    forward = module.forward

    def itself(x: Tensor, visible: Tensor, *, memory: Tensor, **given: Any) -> Tensor:
        own = x[:, torch.arange(memory.shape[1], device=x.device) % x.shape[1]]
        return forward(x, visible, memory=own, **given)

    module.forward = itself


def _adding_nothing(module: TransformerLayer) -> None:
    module.cross_dropout.forward = lambda input: 0 * input


def over_memory(variants: tuple[str, ...], *, keys: str = "cross.keys", probs: str = "cross.probs") -> tuple[Deviation, ...]:
    """Of variants that attend to an encoder's output."""
    return (
        Deviation(name="the memory is the text itself", site=keys, apply=_of_cross(_reading_itself), variants=variants),
        Deviation(name="padding of the memory is visible", site=probs, apply=_of_cross(_seeing_everything), variants=variants),
        Deviation(
            name="attention to the memory adds nothing",
            site="layer",
            apply=each(TransformerLayer, _adding_nothing),
            variants=variants,
        ),
    )


# --- FFN ---


def ffn(*, inner: str, output: str, erf: tuple[str, ...], others: tuple[str, ...]) -> tuple[Deviation, ...]:
    """inner, output: the sites that show the activation first, and what comes out. erf: variants with gelu; others: without."""
    by_tanh, by_erf = (each(FFN, constant("activation", act)) for act in (gelu_tanh, F.gelu))
    return (
        Deviation(name="tanh gelu for gelu", site=inner, apply=by_tanh, variants=erf),
        Deviation(name="gelu whatever the config says", site=inner, apply=by_erf, variants=others),
        Deviation(name="bias of the feed-forward network dropped", site=output, apply=each(FFN, bare_bias("out_proj"))),
    )


# --- layer ---


def _other_order(module: TransformerLayer) -> None:
    module.norm_first = not module.norm_first


def _residual_left_out(module: TransformerLayer) -> None:
    """The last one, around the feed-forward network."""
    reads_residual = module.ffn_norm if module.norm_first else module.ffn
    last: list[Tensor] = []
    reads_residual.register_forward_pre_hook(lambda _, args: last.__setitem__(slice(None), args))
    module.ffn_dropout.forward = lambda input: input - last[0]


def _parallel(module: TransformerLayer) -> None:
    """The feed-forward network reads what attention reads, and not what it wrote."""
    network, inputs = module.ffn.forward, []
    module.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))

    def forward(x: Tensor) -> Tensor:
        if not inputs:  # called by itself
            return network(x)
        earlier = inputs.pop()
        return network(module.ffn_norm(earlier) if module.norm_first else earlier)

    module.ffn.forward = forward


LAYER = (
    Deviation(name="norms on the other side of the residual", site="layer", apply=each(TransformerLayer, _other_order)),
    Deviation(name="attention and feed-forward in parallel", site="layer", apply=each(TransformerLayer, _parallel)),
    Deviation(name="the last residual left out", site="layer", apply=each(TransformerLayer, _residual_left_out)),
)

# --- learned positions ---


def _from_one(module: LearnedPositions) -> None:
    forward = module.forward
    module.forward = lambda positions: forward((positions + 1) % module.max_positions)


def _by_slot(model: Any) -> None:
    forward = model.forward
    model.forward = lambda ids, *, positions=None, **given: forward(ids, **given)


def learned_positions(kind: type[nn.Module], site: str, embedded: str) -> tuple[Deviation, ...]:
    """kind: the model. site: where what the table gives is compared. embedded: where the sum is, as it runs in the model."""
    return (
        Deviation(name="positions are counted from 1", site=site, apply=each(LearnedPositions, _from_one)),
        Deviation(name="positions count padding as well", site=embedded, apply=each(kind, _by_slot)),
    )
