"""BERT: encoders with the heads of pre-training, decoders, and decoders with an encoder's memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parity_tests.families import beside, siblings
from parity_tests.families import deviations as shared
from parity_tests.families import transformer_deviations as mistakes
from parity_tests.families.transformer_units import attention_input, cross_input, held, layer_input, passed, probs
from parity_tests.families.units import NO_MASK, block, output, visible
from parity_tests.fixtures import bert as tiny
from parity_tests.harness import hf
from parity_tests.harness.batches import Reads
from parity_tests.harness.record import (
    FORWARD,
    PUBLISHED,
    Arguments,
    Backend,
    Call,
    Deviation,
    Family,
    Known,
    Site,
    Unit,
    in_layers,
)
from reference_impl import initialisation
from reference_impl.heads import MLMHead
from reference_impl.models.bert import BertConfig, BertEmbedding, BertModel


def reads(config: BertConfig) -> Reads:
    """Text with token types; a decoder with cross-attention also reads a memory."""
    return Reads(
        vocab_size=config.vocab_size,
        causal=config.causal,
        reach=config.max_positions,
        types=config.n_types,
        memory=config.d_model if config.cross_attention else 0,
    )


# --- units ---


def embedded(call: Call, seen: Mapping[str, Tensor]) -> Arguments:
    """Arguments of the embedding: ids, types, positions."""
    ids, positions = passed(call, "input_ids"), passed(call, "position_ids")
    slots = torch.arange(ids.shape[1], device=ids.device)[None]
    return Arguments(ids, passed(call, "token_type_ids"), slots if positions is None else positions)


def units(config: BertConfig) -> list[Unit]:
    """Every unit of a model with this config."""
    trunk = "" if config.heads == "none" else "bert."
    layer = [*_attention(trunk, config), *(_cross_attention(trunk) if config.cross_attention else ())]
    there, here = trunk + "encoder.layer.{layer}.", "layers.{layer}."
    layer += [
        Unit(
            name=here + "ffn",
            hf=there + "intermediate",
            level="block",
            feed=lambda call, seen: Arguments(passed(call, "hidden_states")),
            sites=(Site("dropout", "b s f", lambda c: c.tensor),),
        ),
        block(here + "ffn.out_proj", there + "output.dense"),
        block(here + "ffn_norm", there + "output.LayerNorm"),
        Unit(
            name="layers.{layer}",
            hf=trunk + "encoder.layer.{layer}",
            level="layer",
            feed=layer_input,
            sites=(output("b s d"),),
        ),
    ]
    return [*_embedding(trunk), *in_layers(layer, config, config.n_layers), *_heads(trunk, config)]


def mask(call: Call) -> Tensor | None:
    """The twin's mask, which has one row for all queries in some releases."""
    found = visible(passed(call, "attention_mask"))
    return None if found is None else found.expand(-1, -1, call.argument(0, "hidden_states").shape[1], -1)


def _embedding(trunk: str) -> tuple[Unit, ...]:
    there = trunk + "embeddings."
    return (
        block("embed.tokens", there + "word_embeddings"),
        block("embed.types", there + "token_type_embeddings"),
        block("embed.positions", there + "position_embeddings"),
        block("embed.norm", there + "LayerNorm"),
        Unit(name="embed", hf=trunk + "embeddings", level="block", feed=embedded, sites=(output("b s d"),)),
        Unit(name="embed.dropout", hf=there + "dropout", level="block", sites=(output("b s d"),)),  # the same, as it runs
        Unit(
            name="mask",
            hf=trunk + "encoder.layer.0",
            level="block",
            sites=(Site("", "b 1 s t", mask, absent=NO_MASK),),
        ),
    )


def _attention(trunk: str, config: BertConfig) -> list[Unit]:
    there, here = trunk + "encoder.layer.{layer}.attention.", "layers.{layer}.attn"
    cached = (held("keys", 0, "b h t e"), held("values", 1, "b h t e")) if config.causal else ()
    return [
        block(here + ".q_proj", there + "self.query"),
        block(here + ".k_proj", there + "self.key"),
        block(here + ".v_proj", there + "self.value"),
        Unit(
            name=here,
            hf=there + "self",
            level="block",
            feed=attention_input,
            sites=(*cached, probs("b h s t"), Site("mixed", "b s d", lambda c: c.tensor)),
        ),
        block(here + ".o_proj", there + "output.dense"),
        block(here + "_norm", there + "output.LayerNorm"),
    ]


def _cross_attention(trunk: str) -> list[Unit]:
    there, here = trunk + "encoder.layer.{layer}.crossattention.", "layers.{layer}.cross"
    return [
        Unit(
            name=here,
            hf=there + "self",
            level="block",
            feed=cross_input("attention_mask"),
            sites=(
                held("keys", 2, "b h m e"),
                held("values", 3, "b h m e"),
                probs("b h s m"),
                Site("mixed", "b s d", lambda c: c.tensor),
            ),
        ),
        block(here + ".o_proj", there + "output.dense"),
        block(here + "_norm", there + "output.LayerNorm"),
    ]


def _heads(trunk: str, config: BertConfig) -> list[Unit]:
    found = []
    if config.heads != "mlm":
        found.append(block("pooler", trunk + "pooler", axes="b d"))
    if config.heads == "pretraining":
        found.append(block("nsp_head", "cls.seq_relationship", axes="b k"))
    if config.heads != "none":
        there = "cls.predictions"
        found += [
            block("mlm_head.proj", there + ".transform.dense"),
            block("mlm_head.norm", there + ".transform.LayerNorm"),
            block("mlm_head.decoder", there + ".decoder", axes="b s v"),
            block("mlm_head", there, axes="b s v"),
        ]
    logits = Site("", "b s v", lambda c: hf.logits_of(c.output))
    return [*found, Unit(name="", hf="", label="logits", level="model", sites=(logits,))]


# --- deviations ---


def _first_type_only(module: BertEmbedding) -> None:
    table = module.types
    table.forward = lambda input: F.embedding(torch.zeros_like(input), table.weight)


def _no_norm(module: Any) -> None:
    module.norm.forward = lambda x: x


def _no_activation(module: MLMHead) -> None:
    module.activation = lambda x: x


def _causal(model: BertModel) -> None:
    model.mask.forward = lambda input: input & torch.ones_like(input).tril()


def _everything_visible(model: BertModel) -> None:
    model.mask.forward = lambda input: torch.ones_like(input)


ENCODERS = ("mlm", "pretraining", "untied")
DECODERS = ("decoder", "cross")

EMBEDDING = (
    Deviation(name="every token of the first type", site="embed.types", apply=shared.each(BertEmbedding, _first_type_only)),
    Deviation(name="no norm on the embeddings", site="embed.norm", apply=shared.each(BertEmbedding, _no_norm)),
)
ENCODER_MASK = (
    Deviation(name="an encoder's mask is causal", site="mask", apply=shared.each(BertModel, _causal), variants=ENCODERS),
    Deviation(
        name="padding is visible to an encoder",
        site="mask",
        apply=shared.each(BertModel, _everything_visible),
        variants=ENCODERS,
    ),
)
HEADS = (
    Deviation(name="the head has no activation", site="mlm_head", apply=shared.each(MLMHead, _no_activation)),
    Deviation(name="the head has no norm", site="mlm_head.norm", apply=shared.each(MLMHead, _no_norm)),
    Deviation(name="the head has no bias", site="mlm_head.decoder", apply=shared.each(MLMHead, shared.bare_bias("decoder"))),
)
FAMILY = Family(
    name="bert",
    hf_class="BertForMaskedLM",
    variants=tiny.VARIANTS,
    initial=initialisation.encoder,
    alone=(PUBLISHED,),
    inert={"position_embedding_type": "the mapping refuses all but absolute ones"},
    reads=reads,
    units=units,
    backends=(Backend("eager"), Backend("sdpa", precisions=("f64", "f32"))),
    holds=("b h t e", "b h t e", "b h m e", "b h m e"),
    beside=(beside.hidden_states(), beside.attentions(), beside.CROSS_ATTENTIONS, beside.NEXT_SENTENCE),
    siblings=siblings.encoders("Bert", "pretraining", siblings.HEAD_DROPOUT),
    known=(
        Known(
            name="generate makes a cache in which attention to a memory finds no place",
            smallest="`BertLMHeadModel` with `add_cross_attention`, `generate(ids, encoder_hidden_states=m)`",
            sites=("greedy", "left-padded", "eos"),
            since="5.1.0",
            where=lambda config: config.cross_attention,
            link="no issue known",
            raises="AttributeError",
        ),
        Known(
            name="generate keeps the keys of the text and of the memory in one cache",
            sites=("greedy", "left-padded", "eos"),
            until="5.0.0",
            where=lambda config: config.cross_attention,
            link="no issue known",
            raises="RuntimeError",
        ),
        Known(
            name="the same where nothing is padded, under sdpa",
            sites=("greedy", "left-padded"),
            until="5.0.0",
            where=lambda config: config.cross_attention,
            attention=("sdpa",),
            precisions=("f32",),
            link="no issue known",
            unexplained="the reference has no cache that a text and a memory share",
        ),
        Known(
            name="the mask of a decoder overflows in float64",
            sites=(FORWARD,),
            until="5.0.0",
            where=lambda config: config.causal,
            attention=("sdpa",),
            precisions=("f64",),
            link="no issue known",
            raises="RuntimeError",
        ),
        Known(
            name="the mask of a decoder is as long as a static cache, and its keys are not",
            sites=("static.steps", "static.chunks"),
            until="5.0.0",
            where=lambda config: config.causal,
            link="no issue known",
            raises="RuntimeError",
        ),
    ),
    deviations=(
        *EMBEDDING,
        *mistakes.learned_positions(BertModel, "embed.positions", "embed.dropout"),
        *mistakes.layer_norm("embed.norm", configured=True),
        *ENCODER_MASK,
        *mistakes.within(shared.masks(BertModel), DECODERS),
        *mistakes.attention(queries="attn.q_proj", keys="attn.k_proj", biases="attn.q_proj", output="attn.o_proj"),
        *mistakes.over_memory(("cross",)),
        *mistakes.ffn(
            inner="ffn.dropout", output="ffn.out_proj", erf=("mlm", "decoder"), others=("pretraining", "untied", "cross")
        ),
        *mistakes.LAYER,
        *HEADS,
        *mistakes.within(shared.caches(BertModel), DECODERS),
    ),
)
