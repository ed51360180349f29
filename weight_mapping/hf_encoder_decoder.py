"""What HF's BART and Marian have in common around their embeddings: names of tensors, keys of config.json."""

from reference_impl.ffn import ACTIVATIONS
from reference_impl.post_norm import PostNormConfig
from weight_mapping.container import Value
from weight_mapping.family import COUNT, FLAG, PROBABILITY, TEXT, WHOLE_OR_NULL, Check, Default, Key
from weight_mapping.patterns import Index
from weight_mapping.rules import Rule, rename

HEAD = "lm_head.weight"
SHARED, SOURCE, TARGET = "model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"


def index(config: PostNormConfig) -> Index:
    """Of the rules of `layers`."""
    return {
        "encoder_layer": range(config.n_encoder_layers),
        "decoder_layer": range(config.n_decoder_layers),
        "side": ("encoder", "decoder"),
        "part": ("weight", "bias"),
    }


def layers() -> tuple[Rule, ...]:
    """The layers of both sides, and the bias of the logits."""
    encoder = ("model.encoder.layers.{encoder_layer}.", "encoder.layers.{encoder_layer}.")
    decoder = ("model.decoder.layers.{decoder_layer}.", "decoder.layers.{decoder_layer}.")
    both = (rule for here, there in (encoder, decoder) for rule in _layer(here, there))
    here, there = decoder
    return (
        *both,
        *_attention(here + "encoder_attn", there + "cross"),
        rename(here + "encoder_attn_layer_norm.{part}", there + "cross_norm.{part}"),
        Rule(("final_logits_bias",), ("logits_bias",), otherwise=0.0),  # a model saved by its base class has none
    )


def _layer(here: str, there: str) -> tuple[Rule, ...]:
    return (
        *_attention(here + "self_attn", there + "attn"),
        rename(here + "self_attn_layer_norm.{part}", there + "attn_norm.{part}"),
        rename(here + "fc1.{part}", there + "ffn.in_proj.{part}"),
        rename(here + "fc2.{part}", there + "ffn.out_proj.{part}"),
        rename(here + "final_layer_norm.{part}", there + "ffn_norm.{part}"),
    )


def _attention(here: str, there: str) -> tuple[Rule, ...]:
    names = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "out_proj": "o_proj"}
    return tuple(rename(f"{here}.{theirs}.{{part}}", f"{there}.{ours}.{{part}}") for theirs, ours in names.items())


KEYS = {
    "vocab_size": Key("vocab_size", COUNT),
    "d_model": Key("d_model", COUNT),
    "hidden_size": Key("d_model", COUNT),
    "encoder_layers": Key("n_encoder_layers", COUNT),
    "num_hidden_layers": Key("n_encoder_layers", COUNT),
    "decoder_layers": Key("n_decoder_layers", COUNT),
    "encoder_attention_heads": Key("n_encoder_heads", COUNT),
    "num_attention_heads": Key("n_encoder_heads", COUNT),
    "decoder_attention_heads": Key("n_decoder_heads", COUNT),
    "encoder_ffn_dim": Key("d_encoder_ff", COUNT),
    "decoder_ffn_dim": Key("d_decoder_ff", COUNT),
    "max_position_embeddings": Key("max_positions", COUNT),
    "activation_function": Key("activation", TEXT),
    "scale_embedding": Key("scaled_embedding", FLAG),
    "tie_word_embeddings": Key("tied_head", FLAG),
    "pad_token_id": Key("pad_id", WHOLE_OR_NULL),
    "dropout": Key("dropout", PROBABILITY),
    "attention_dropout": Key("attention_dropout", PROBABILITY),
    "activation_dropout": Key("activation_dropout", PROBABILITY),
    "encoder_layerdrop": Key("encoder_layer_dropout", PROBABILITY),
    "decoder_layerdrop": Key("decoder_layer_dropout", PROBABILITY),
}

CHECKS = (
    Check("{d_model} is no multiple of {n_encoder_heads}", lambda f: f["d_model"] % f["n_encoder_heads"] == 0),
    Check("{d_model} is no multiple of {n_decoder_heads}", lambda f: f["d_model"] % f["n_decoder_heads"] == 0),
    Check(f"{{activation}} is not one of {', '.join(ACTIVATIONS)}", lambda f: f["activation"] in ACTIVATIONS),
    Check("{pad_id} is no token of {vocab_size}", lambda f: f["pad_id"] is None or f["pad_id"] < f["vocab_size"]),
)

ONLY: dict[str, tuple[Value, ...]] = {
    # options of the code that these models were converted from, of which transformers has one value each
    "is_encoder_decoder": (True,),
    "tie_encoder_decoder": (False,),
    "normalize_before": (False,),
    "add_final_layer_norm": (False,),
}

HARMLESS = (
    *"add_bias_logits init_std classif_dropout classifier_dropout".split(),  # initial values, heads for classes
    *"_num_labels num_labels output_past save_step prefix".split(),
    *"force_bos_token_to_be_generated num_beam_groups diversity_penalty remove_invalid_values".split(),
)

DEFAULTS: dict[str, Default] = {
    "d_model": 1024,
    "n_encoder_layers": 12,
    "n_decoder_layers": 12,
    "n_encoder_heads": 16,
    "n_decoder_heads": 16,
    "d_encoder_ff": 4096,
    "d_decoder_ff": 4096,
    "max_positions": 1024,
    "activation": "gelu",
    "scaled_embedding": False,
    "tied_head": True,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "encoder_layer_dropout": 0.0,
    "decoder_layer_dropout": 0.0,
}

IMPLIED = {"is_encoder_decoder": lambda _: True}
