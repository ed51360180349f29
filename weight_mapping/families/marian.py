"""Marian, the translation models of Helsinki-NLP. Junczys-Dowmunt et al. 2018."""

from reference_impl.models.marian import MarianConfig, MarianModel
from weight_mapping import hf_encoder_decoder as shared
from weight_mapping.family import COUNT, FLAG, Check, Family, Key, Layout
from weight_mapping.hf_encoder_decoder import HEAD, SHARED, SOURCE, TARGET
from weight_mapping.rules import Drop, Rule, Table, rename, tie


def hf(config: MarianConfig) -> Table:
    """The names of the hub: model.safetensors as transformers writes it."""
    return Table(
        index=shared.index(config),
        rules=(*_embeddings(config), *shared.layers()),
        drops=(
            Drop(
                source="model.{side}.embed_positions.weight",
                reason="the table of sines, which every reader makes by its formula",
            ),
        ),
    )


def _embeddings(config: MarianConfig) -> tuple[Rule, ...]:
    """One tensor, or one a side, with the head tied to the decoder's or apart."""
    head = () if config.tied_head else (rename(HEAD, "lm_head.weight"),)
    tied = (HEAD,) if config.tied_head else ()
    if config.shared_embedding:
        return (tie((SHARED, SOURCE, TARGET, *tied), "encoder.embed.weight"), *head)
    return (rename(SOURCE, "encoder.embed.weight"), tie((TARGET, *tied), "decoder.embed.weight"), *head)


FAMILY = Family(
    architecture="MarianMTModel",
    config=MarianConfig,
    model=MarianModel,
    checks=(
        *shared.CHECKS,
        Check(
            "{pad_id} is no token of {decoder_vocab_size}",
            lambda f: f["pad_id"] is None or f["pad_id"] < f["decoder_vocab_size"],
        ),
        Check(
            "{decoder_vocab_size} differs from {vocab_size}, and {shared_embedding} makes them one",
            lambda f: not f["shared_embedding"] or f["decoder_vocab_size"] == f["vocab_size"],
        ),
    ),
    layouts={
        "hf": Layout(
            names=("marian",),
            keys={
                **shared.KEYS,
                "decoder_vocab_size": Key("decoder_vocab_size", COUNT),
                "share_encoder_decoder_embeddings": Key("shared_embedding", FLAG),
            },
            only={**shared.ONLY, "normalize_embedding": (False,), "static_position_embeddings": (True,)},
            harmless=shared.HARMLESS,
            defaults={
                "vocab_size": 58101,
                "decoder_vocab_size": lambda f: f["vocab_size"],
                "pad_id": 58100,
                **shared.DEFAULTS,
                "shared_embedding": True,
            },
            implied=shared.IMPLIED,
        ),
    },
    tables={"hf": hf, "transformers5": hf},
    trunk="model.",
)
