"""FNet. Lee-Thorp et al. 2021."""

from reference_impl.ffn import ACTIVATIONS
from reference_impl.models.fnet import FNetConfig, FNetModel
from weight_mapping.family import COUNT, FLAG, POSITIVE, PROBABILITY, TEXT, WHOLE_OR_NULL, Check, Family, Key, Layout
from weight_mapping.rules import Alias, Drop, Table, rename, tie

HERE, THERE = "fnet.encoder.layer.{layer}.", "layers.{layer}."


def hf(config: FNetConfig) -> Table:
    """The names of the hub: model.safetensors as transformers writes it for the masked language model."""
    token, head = "fnet.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
    both = (rename(token, "embed.tokens.weight"), rename(head, "mlm_head.decoder.weight"))
    bias, other = "cls.predictions.bias", "cls.predictions.decoder.bias"  # 4 has one tensor, and saves it under the first
    return Table(
        index={"layer": range(config.n_layers), "part": ("weight", "bias")},
        rules=(
            *((tie((token, head), "embed.tokens.weight"),) if config.tied_head else both),
            tie((bias, other), "mlm_head.decoder.bias") if config.tied_head else rename(other, "mlm_head.decoder.bias"),
            rename("fnet.embeddings.token_type_embeddings.weight", "embed.types.weight"),
            rename("fnet.embeddings.position_embeddings.weight", "embed.positions.weight"),
            rename("fnet.embeddings.LayerNorm.{part}", "embed.norm.{part}"),
            rename("fnet.embeddings.projection.{part}", "embed.proj.{part}"),
            rename(HERE + "fourier.output.LayerNorm.{part}", THERE + "mixer_norm.{part}"),
            rename(HERE + "intermediate.dense.{part}", THERE + "ffn.in_proj.{part}"),
            rename(HERE + "output.dense.{part}", THERE + "ffn.out_proj.{part}"),
            rename(HERE + "output.LayerNorm.{part}", THERE + "ffn_norm.{part}"),
            rename("fnet.pooler.dense.{part}", "pooler.proj.{part}"),
            rename("cls.predictions.transform.dense.{part}", "mlm_head.proj.{part}"),
            rename("cls.predictions.transform.LayerNorm.{part}", "mlm_head.norm.{part}"),
        ),
        drops=(
            Drop(source="fnet.embeddings.position_ids", reason="a buffer that old releases stored: 0, 1, 2 …"),
            Drop(source="cls.seq_relationship.{part}", reason="next sentence prediction, apart from the language model"),
            *(() if config.tied_head else (Drop(source=bias, reason="5 has two, and reads the other", beside=other),)),
        ),
        aliases=() if config.tied_head else (Alias("cls.predictions.decoder.*", "cls.predictions.*"),),
    )


FAMILY = Family(
    architecture="FNetForMaskedLM",
    config=FNetConfig,
    model=FNetModel,
    checks=(
        Check(f"{{activation}} is not one of {', '.join(ACTIVATIONS)}", lambda f: f["activation"] in ACTIVATIONS),
        Check("{pad_id} is no row of {vocab_size}", lambda f: f["pad_id"] is None or f["pad_id"] < f["vocab_size"]),
    ),
    layouts={
        "hf": Layout(
            names=("fnet",),
            keys={
                "vocab_size": Key("vocab_size", COUNT),
                "hidden_size": Key("d_model", COUNT),
                "num_hidden_layers": Key("n_layers", COUNT),
                "intermediate_size": Key("d_ff", COUNT),
                "max_position_embeddings": Key("max_positions", COUNT),
                "type_vocab_size": Key("n_types", COUNT),
                "layer_norm_eps": Key("norm_eps", POSITIVE),
                "hidden_act": Key("activation", TEXT),
                "hidden_dropout_prob": Key("dropout", PROBABILITY),
                "pad_token_id": Key("pad_id", WHOLE_OR_NULL),
                "tie_word_embeddings": Key("tied_head", FLAG),
            },
            only={},
            harmless=(
                # how the transform is computed: by matrices, which transformers takes for one length of sequence only
                *"use_tpu_fourier_optimizations tpu_short_seq_length".split(),
            ),
            defaults={
                "vocab_size": 32000,
                "d_model": 768,
                "n_layers": 12,
                "d_ff": 3072,
                "max_positions": 512,
                "n_types": 4,
                "norm_eps": 1e-12,
                "activation": "gelu_new",
                "dropout": 0.1,
                "pad_id": 3,
                "tied_head": True,
            },
        ),
    },
    tables={"hf": hf, "transformers5": hf},
    trunk="fnet.",
)
