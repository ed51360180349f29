"""GPT-2: each way of scaling scores, and attention to an encoder's memory."""

from __future__ import annotations

from typing import Any

from parity_tests.families import beside, siblings
from parity_tests.families import deviations as shared
from parity_tests.families import transformer_deviations as mistakes
from parity_tests.families.transformer_units import attention_input, cross_input, held, layer_input, passed, probs
from parity_tests.families.units import NO_MASK, block, output, visible
from parity_tests.fixtures import gpt2 as tiny
from parity_tests.harness.batches import Reads
from parity_tests.harness.record import PUBLISHED, Backend, Deviation, Family, Known, Site, Unit, in_layers
from reference_impl import initialisation
from reference_impl.models.gpt2 import GPT2Config, GPT2Model


def reads(config: GPT2Config) -> Reads:
    """Text, of which each token has another beside it as its type; with cross-attention also a memory."""
    return Reads(
        vocab_size=config.vocab_size,
        reach=config.max_positions,
        types=config.vocab_size,
        memory=config.d_model if config.cross_attention else 0,
    )


# --- units ---

HERE, THERE = "layers.{layer}", "transformer.h.{layer}"


def units(config: GPT2Config) -> list[Unit]:
    """Every unit of a model with this config."""
    layer = (
        block(f"{HERE}.attn_norm", f"{THERE}.ln_1"),
        ATTENTION,
        *(CROSS_ATTENTION if config.cross_attention else ()),
        block(f"{HERE}.ffn_norm", f"{THERE}.ln_2"),
        block(f"{HERE}.ffn", f"{THERE}.mlp"),
        Unit(name=HERE, hf=THERE, level="layer", feed=layer_input, sites=(output("b s d"),)),
    )
    return [*BEFORE, *in_layers(layer, config, config.n_layers), *AFTER]


BEFORE = (
    block("embed", "transformer.wte"),  # of the types, which are looked up last
    block("positions", "transformer.wpe"),
    Unit(name="dropout", hf="transformer.drop", level="block", sites=(output("b s d"),)),  # the sum of them all
    Unit(
        name="mask",
        hf="transformer.h.0",
        level="block",
        sites=(Site("", "b 1 s t", lambda c: visible(passed(c, "attention_mask")), absent=NO_MASK),),
    ),
)

ATTENTION = Unit(
    name=f"{HERE}.attn",
    hf=f"{THERE}.attn",
    level="block",
    feed=attention_input,
    sites=(held("keys", 0, "b h t e"), held("values", 1, "b h t e"), probs("b h s t"), output("b s d")),
)

CROSS_ATTENTION = (
    block(f"{HERE}.cross_norm", f"{THERE}.ln_cross_attn"),
    Unit(
        name=f"{HERE}.cross",
        hf=f"{THERE}.crossattention",
        level="block",
        feed=cross_input("encoder_attention_mask"),
        sites=(held("keys", 2, "b h m e"), held("values", 3, "b h m e"), probs("b h s m"), output("b s d")),
    ),
)

AFTER = (
    block("norm", "transformer.ln_f"),
    block("lm_head", "lm_head", axes="b s v"),
    Unit(name="", hf="", label="logits", level="model", sites=(Site("", "b s v", lambda c: c.output["logits"]),)),
)


# --- deviations ---


def _without_types(model: Any) -> None:
    forward = model.forward
    model.forward = lambda ids, *, types=None, **given: forward(ids, **given)


def _last_norm_left_out(model: GPT2Model) -> None:
    model.norm.forward = lambda x: x


def _undivided(model: Any) -> None:
    for i, layer in enumerate(model.layers):
        layer.attn.scale = layer.attn.scale * (i + 1)


def _cross_undivided(model: Any) -> None:
    for i, layer in enumerate(model.layers):
        layer.cross.scale = layer.cross.scale * (i + 1)


SCALED = ("base", "by-layer", "untied", "cross")
BY_LAYER = ("by-layer", "cross", "upcast")

SCALES = (
    Deviation(
        name="scores are scaled all the same",
        site="attn.probs",
        apply=mistakes.rescaled(lambda m: m.scale * (m.q_proj.out_features // m.n_heads) ** -0.5),
        variants=("unscaled",),
    ),
    Deviation(
        name="scores are not divided by layer",
        site="attn.probs",
        apply=shared.each(GPT2Model, _undivided),
        variants=BY_LAYER,
    ),
    Deviation(
        name="those over the memory are not divided by layer",
        site="cross.probs",
        apply=shared.each(GPT2Model, _cross_undivided),
        variants=("cross",),
    ),
)

FAMILY = Family(
    name="gpt2",
    hf_class="GPT2LMHeadModel",
    variants=tiny.VARIANTS,
    initial=initialisation.gpt2,
    alone=(PUBLISHED,),
    reads=reads,
    units=units,
    backends=(
        Backend("eager", variants=(*SCALED, "unscaled")),
        Backend("eager", precisions=("f32", "bf16", "f16"), variants=("upcast",)),  # it asks whether scores are float32
        Backend("sdpa", precisions=("f64", "f32")),
    ),
    holds=("b h t e", "b h t e", "b h m e", "b h m e"),
    beside=(beside.hidden_states("dropout", "norm"), beside.attentions(), beside.CROSS_ATTENTIONS),
    siblings=siblings.GPT2,
    known=(
        beside.no_tuple_by_config("5.0.0"),
        Known(
            name="sdpa does not divide scores over the memory by layer",
            sites=("cross",),
            since="4.42.0",
            until="5.4.0",
            where=lambda config: config.scaled_by_layer and config.cross_attention,
            attention=("sdpa",),
            link="https://github.com/huggingface/transformers/pull/44397",
            explained="those over the memory are not divided by layer",
        ),
        Known(
            name="sdpa does not divide scores by layer",
            sites=("attn",),
            since="4.42.0",
            until="5.4.0",
            where=lambda config: config.scaled_by_layer,
            attention=("sdpa",),
            link="https://github.com/huggingface/transformers/pull/44397",
            explained="scores are not divided by layer",
        ),
        Known(
            name="sdpa scales scores all the same",
            sites=("attn",),
            since="4.42.0",
            until="5.4.0",
            where=lambda config: not config.scaled,
            attention=("sdpa",),
            link="https://github.com/huggingface/transformers/pull/44397",
            explained="scores are scaled all the same",
        ),
        *(
            Known(
                name="the padding of a memory is seen",
                sites=("cross.probs", "cross"),
                since=since,
                until="5.16.0",
                where=lambda config: config.cross_attention,
                attention=(attention,),
                link="measured, release by release: the mask that is given for it reaches no layer",
                explained="padding of the memory is visible",
            )
            for attention, since in {"eager": "5.2.0", "sdpa": "5.4.0"}.items()  # sdpa is known to differ until then
        ),
    ),
    deviations=(
        Deviation(name="token types are left out", site="dropout", apply=shared.each(GPT2Model, _without_types)),
        *mistakes.learned_positions(GPT2Model, "positions", "dropout"),
        *shared.masks(GPT2Model),
        *mistakes.layer_norm("attn_norm", configured=True),
        *mistakes.attention(queries="attn.keys", keys="attn.keys", biases="attn.values", output="attn", scaled=SCALED),
        mistakes.joined_qkv("attn.keys"),
        *SCALES,
        *mistakes.over_memory(("cross",)),
        *mistakes.ffn(inner="ffn", output="ffn", erf=("unscaled",), others=SCALED),
        *mistakes.LAYER,
        Deviation(name="last norm left out", site="norm", apply=shared.each(GPT2Model, _last_norm_left_out)),
        *shared.caches(GPT2Model),
    ),
)
