"""T5 1.0 and 1.1, and Flan-T5. Raffel et al. 2020, Shazeer 2020."""

from dataclasses import replace

from reference_impl.ffn import ACTIVATIONS
from reference_impl.models.t5 import T5Config, T5Model
from weight_mapping.family import COUNT, FLAG, POSITIVE, PROBABILITY, TEXT, Check, Family, Key, Layout
from weight_mapping.rules import Drop, Rule, Table, rename, tie

ATTENTION = (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("o", "o_proj"))
NETWORK = (("wi", "in_proj"), ("wo", "out_proj"), ("wi_0", "gate_proj"), ("wi_1", "up_proj"), ("wo", "down_proj"))
"""An FFN's and a GatedFFN's: a model has one of the two."""

HEAD = "lm_head.weight"
EMBEDDING = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def hf(config: T5Config) -> Table:
    """The names of the hub: model.safetensors as transformers writes it. One embedding, by any of its names."""
    both = (tie(EMBEDDING, "encoder.embed.weight"), rename(HEAD, "lm_head.weight"))
    encoder = ("encoder.block.{encoder_layer}.layer.", "encoder.layers.{encoder_layer}.")
    decoder = ("decoder.block.{decoder_layer}.layer.", "decoder.layers.{decoder_layer}.")
    return Table(
        index={
            "encoder_layer": range(config.n_encoder_layers),
            "decoder_layer": range(config.n_decoder_layers),
            "side": ("encoder", "decoder"),
        },
        rules=(
            *((tie((*EMBEDDING, HEAD), "encoder.embed.weight"),) if config.tied_head else both),
            *_part(*encoder, "0.SelfAttention", "attn", ATTENTION),
            *_part(*encoder, "1.DenseReluDense", "ffn", NETWORK),
            *_part(*decoder, "0.SelfAttention", "attn", ATTENTION),
            *_part(*decoder, "1.EncDecAttention", "cross", ATTENTION),
            *_part(*decoder, "2.DenseReluDense", "ffn", NETWORK),
            # the first layer's, which all read
            rename("{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", "{side}.relative.weight"),
            rename("{side}.final_layer_norm.weight", "{side}.norm.weight"),
        ),
        drops=(
            Drop(
                source="decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
                reason="attention to the memory has no relative positions; old files hold a table that nothing reads",
            ),
        ),
    )


def _part(here: str, there: str, theirs: str, ours: str, projections: tuple[tuple[str, str], ...]) -> tuple[Rule, ...]:
    """A third of a layer, which transformers numbers: its norm and its projections."""
    return (
        rename(f"{here}{theirs[0]}.layer_norm.weight", f"{there}{ours}_norm.weight"),
        *(rename(f"{here}{theirs}.{a}.weight", f"{there}{ours}.{b}.weight") for a, b in projections),
    )


_TIED = replace(FLAG, absent=(None, True))  # transformers 5 writes true for all: what the file holds decides

_FEED_FORWARD = replace(
    TEXT,
    read=lambda v: {"gated-gelu": "gated-gelu_new"}.get(v, v) if type(v) is str else None,  # T5 1.1's GELU is the tanh one
    write=lambda v: {"gated-gelu_new": "gated-gelu"}.get(v, v) if type(v) is str else None,
)

FAMILY = Family(
    architecture="T5ForConditionalGeneration",
    config=T5Config,
    model=T5Model,
    checks=(
        Check(
            f"the activation of {{feed_forward}} is not one of {', '.join(ACTIVATIONS)}",
            lambda f: f["feed_forward"].removeprefix("gated-") in ACTIVATIONS,
        ),
        Check("{n_buckets} is less than 4: each direction needs two", lambda f: f["n_buckets"] >= 4),
        Check("{max_distance} is no more than half of {n_buckets}", lambda f: f["max_distance"] > f["n_buckets"] // 2),
    ),
    layouts={
        "hf": Layout(
            names=("t5",),
            keys={
                "vocab_size": Key("vocab_size", COUNT),
                "d_model": Key("d_model", COUNT),
                "hidden_size": Key("d_model", COUNT),
                "num_layers": Key("n_encoder_layers", COUNT),
                "num_hidden_layers": Key("n_encoder_layers", COUNT),
                "num_decoder_layers": Key("n_decoder_layers", COUNT),
                "num_heads": Key("n_heads", COUNT),
                "num_attention_heads": Key("n_heads", COUNT),
                "d_kv": Key("d_head", COUNT),
                "head_dim": Key("d_head", COUNT),
                "d_ff": Key("d_ff", COUNT),
                "relative_attention_num_buckets": Key("n_buckets", COUNT),
                "relative_attention_max_distance": Key("max_distance", COUNT),
                "layer_norm_epsilon": Key("norm_eps", POSITIVE),
                "feed_forward_proj": Key("feed_forward", _FEED_FORWARD),
                "tie_word_embeddings": Key("tied_head", _TIED),
                "scale_decoder_outputs": Key("scaled_head", FLAG),  # of transformers 5
                "dropout_rate": Key("dropout", PROBABILITY),
            },
            only={"is_encoder_decoder": (True,), "tie_encoder_decoder": (False,)},
            harmless=(
                *"initializer_factor n_positions output_past classifier_dropout".split(),
                *"_num_labels num_labels".split(),
            ),
            defaults={
                "vocab_size": 32128,
                "d_model": 512,
                "n_encoder_layers": 6,
                "n_decoder_layers": lambda f: f["n_encoder_layers"],
                "n_heads": 8,
                "d_head": 64,
                "d_ff": 2048,
                "n_buckets": 32,
                "max_distance": 128,
                "norm_eps": 1e-6,
                "feed_forward": "relu",
                "tied_head": True,
                "scaled_head": lambda f: f["tied_head"],
                "dropout": 0.1,
            },
            tensors_say={"tied_head": lambda c: HEAD not in c or c.config.get("scale_decoder_outputs") is not False},
            implied={
                "is_encoder_decoder": lambda _: True,
                "dense_act_fn": lambda c: c.activation,
                "is_gated_act": lambda c: c.gated,
            },
        ),
    },
    tables={"hf": hf, "transformers5": hf},
)
