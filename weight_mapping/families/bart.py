"""BART. Lewis et al. 2019."""

from reference_impl.models.bart import BartConfig, BartModel
from weight_mapping import hf_encoder_decoder as shared
from weight_mapping.family import Family, Layout
from weight_mapping.hf_encoder_decoder import HEAD, SHARED, SOURCE, TARGET
from weight_mapping.rules import Table, rename, tie


def hf(config: BartConfig) -> Table:
    """The names of the hub: model.safetensors as transformers writes it. One embedding, by any of its names."""
    both = (tie((SHARED, SOURCE, TARGET), "encoder.embed.weight"), rename(HEAD, "lm_head.weight"))
    return Table(
        index=shared.index(config),
        rules=(
            *((tie((SHARED, SOURCE, TARGET, HEAD), "encoder.embed.weight"),) if config.tied_head else both),
            rename("model.{side}.embed_positions.weight", "{side}.positions.weight"),
            rename("model.{side}.layernorm_embedding.{part}", "{side}.embed_norm.{part}"),
            *shared.layers(),
        ),
    )


FAMILY = Family(
    architecture="BartForConditionalGeneration",
    config=BartConfig,
    model=BartModel,
    checks=shared.CHECKS,
    layouts={
        "hf": Layout(
            names=("bart",),
            keys=shared.KEYS,
            only={
                **shared.ONLY,
                "normalize_embedding": (True,),
                "static_position_embeddings": (False,),
                "extra_pos_embeddings": (2,),
            },
            harmless=shared.HARMLESS,
            defaults={"vocab_size": 50265, "pad_id": 1, **shared.DEFAULTS},
            implied=shared.IMPLIED,
        ),
    },
    tables={"hf": hf, "transformers5": hf},
    trunk="model.",
)
