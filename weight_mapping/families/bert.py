"""BERT, as an encoder or as a decoder, with its heads for pre-training or without. Devlin et al. 2018."""

from collections.abc import Iterator

from reference_impl.ffn import ACTIVATIONS
from reference_impl.models.bert import BertConfig, BertModel, Heads
from weight_mapping.container import Checkpoint, Value
from weight_mapping.family import COUNT, FLAG, POSITIVE, PROBABILITY, TEXT, WHOLE, Check, Family, Key, Kind, Layout
from weight_mapping.rules import Alias, Drop, Rule, Table, rename, tie

HEAD = "cls.predictions."


def hf(config: BertConfig) -> Table:
    """The names of the hub. A model without the MLM head has no prefix."""
    biases = (HEAD + "bias", HEAD + "decoder.bias")
    # an untied head's is read by its first name in transformers 4, and by its second in 5
    return _table(config, tie(biases, "mlm_head.decoder.bias", all_written=not config.tied_head))


def transformers5(config: BertConfig) -> Table:
    """What transformers 5 has in memory. Where nothing is tied, there are two biases, and no forward reads the first."""
    if config.tied_head:
        return hf(config)
    dead = Drop(source=HEAD + "bias", reason="no forward reads it where the head is not tied", beside=HEAD + "decoder.bias")
    alone = Alias("*predictions.decoder.bias", "*predictions.bias")  # in 4 they are one
    return _table(config, rename(HEAD + "decoder.bias", "mlm_head.decoder.bias"), drops=(dead,), aliases=(alone,))


def _table(config: BertConfig, bias: Rule, *, drops: tuple[Drop, ...] = (), aliases: tuple[Alias, ...] = ()) -> Table:
    trunk = "bert." if config.heads != "none" else ""
    here, there = trunk + "encoder.layer.{layer}.", "layers.{layer}."
    return Table(
        index={"layer": range(config.n_layers), "part": ("weight", "bias"), "task": ("species", "chain", "graft")},
        rules=(
            *_matrices(config, trunk + "embeddings.word_embeddings.weight"),
            bias,
            rename(trunk + "embeddings.token_type_embeddings.weight", "embed.types.weight"),
            rename(trunk + "embeddings.position_embeddings.weight", "embed.positions.weight"),
            rename(trunk + "embeddings.LayerNorm.{part}", "embed.norm.{part}"),
            *_attention(here + "attention.", there + "attn"),
            *_attention(here + "crossattention.", there + "cross"),
            rename(here + "intermediate.dense.{part}", there + "ffn.in_proj.{part}"),
            rename(here + "output.dense.{part}", there + "ffn.out_proj.{part}"),
            rename(here + "output.LayerNorm.{part}", there + "ffn_norm.{part}"),
            rename(trunk + "pooler.dense.{part}", "pooler.proj.{part}"),
            rename(HEAD + "transform.dense.{part}", "mlm_head.proj.{part}"),
            rename(HEAD + "transform.LayerNorm.{part}", "mlm_head.norm.{part}"),
            rename("cls.seq_relationship.{part}", "nsp_head.{part}"),
        ),
        drops=(*_drops(config, trunk), *drops),
        aliases=(
            *(() if trunk else (Alias("*", "bert.*"),)),
            Alias("*LayerNorm.weight", "*LayerNorm.gamma"),  # names of TensorFlow, and of what 5.0 to 5.5 saved
            Alias("*LayerNorm.bias", "*LayerNorm.beta"),
            *aliases,
        ),
    )


def _matrices(config: BertConfig, words: str) -> tuple[Rule, ...]:
    """The token embedding and the matrix of the head."""
    head = HEAD + "decoder.weight"
    if config.tied_head and config.heads != "none":
        return (tie((words, head), "embed.tokens.weight"),)
    return rename(words, "embed.tokens.weight"), rename(head, "mlm_head.decoder.weight")


def _attention(here: str, there: str) -> tuple[Rule, ...]:
    return (
        rename(here + "self.query.{part}", there + ".q_proj.{part}"),
        rename(here + "self.key.{part}", there + ".k_proj.{part}"),
        rename(here + "self.value.{part}", there + ".v_proj.{part}"),
        rename(here + "output.dense.{part}", there + ".o_proj.{part}"),
        rename(here + "output.LayerNorm.{part}", there + "_norm.{part}"),
    )


def _drops(config: BertConfig, trunk: str) -> Iterator[Drop]:
    """Files hold more than their config's class has: hubs' bert-base-uncased has the heads of its pre-training."""
    yield Drop(source=trunk + "embeddings.position_ids", reason="a buffer that old releases stored: 0, 1, 2, ...")
    yield Drop(source="cls.{task}.{part}", reason="AntiBERTy's heads for antibodies, apart from the model proper")
    unused = "a head that the class in the config does not have"
    if config.heads != "pretraining":
        yield Drop(source="cls.seq_relationship.{part}", reason=unused)
    if config.heads == "mlm":
        yield Drop(source=trunk + "pooler.dense.{part}", reason=unused)
    if config.heads == "none":
        for name in ("bias", "decoder.{part}", "transform.dense.{part}", "transform.LayerNorm.{part}"):
            yield Drop(source=HEAD + name, reason=unused)


def _architecture(config: BertConfig) -> str:
    if config.causal and config.heads == "mlm":
        return "BertLMHeadModel"
    return next(name for name, heads in _HEADS.items() if heads == config.heads)


_HEADS: dict[str, Heads] = {
    "BertForMaskedLM": "mlm",
    "BertLMHeadModel": "mlm",
    "BertForPreTraining": "pretraining",
    "BertModel": "none",
}
_CLASS = Kind(
    says=f"a list of one of {', '.join(_HEADS)}",
    read=lambda v: _HEADS.get(str(v[0])) if isinstance(v, list) and len(v) == 1 else None,
    write=lambda v: [next(name for name, heads in _HEADS.items() if heads == v)],
    absent=(None, ["AntiBERTy"]),  # a class of its own, which its tensors tell
)
_TOKEN_OR_NULL = Kind("a whole number of 0 or more or null", WHOLE.read, absent=(), null=True)


def _heads(checkpoint: Checkpoint) -> Value:
    if "cls.seq_relationship.weight" in checkpoint:
        return "pretraining"
    return "mlm" if HEAD + "transform.dense.weight" in checkpoint else "none"


FAMILY = Family(
    architecture=_architecture,
    config=BertConfig,
    model=BertModel,
    checks=(
        Check("{d_model} is no multiple of {n_heads}", lambda f: f["d_model"] % f["n_heads"] == 0),
        Check(f"{{activation}} is not one of {', '.join(ACTIVATIONS)}", lambda f: f["activation"] in ACTIVATIONS),
        Check("{cross_attention} needs a decoder, and {causal} is none", lambda f: f["causal"] or not f["cross_attention"]),
        Check(
            "{pad_id} is no token, with {vocab_size}",
            lambda f: f["pad_id"] is None or f["pad_id"] < f["vocab_size"],
        ),
    ),
    layouts={
        "hf": Layout(
            names=("bert",),
            keys={
                "architectures": Key("heads", _CLASS),
                "vocab_size": Key("vocab_size", COUNT),
                "hidden_size": Key("d_model", COUNT),
                "intermediate_size": Key("d_ff", COUNT),
                "num_hidden_layers": Key("n_layers", COUNT),
                "num_attention_heads": Key("n_heads", COUNT),
                "max_position_embeddings": Key("max_positions", COUNT),
                "type_vocab_size": Key("n_types", COUNT),
                "layer_norm_eps": Key("norm_eps", POSITIVE),
                "hidden_act": Key("activation", TEXT),
                "is_decoder": Key("causal", FLAG),
                "add_cross_attention": Key("cross_attention", FLAG),
                "tie_word_embeddings": Key("tied_head", FLAG),
                "pad_token_id": Key("pad_id", _TOKEN_OR_NULL),
                "hidden_dropout_prob": Key("dropout", PROBABILITY),
                "attention_probs_dropout_prob": Key("attention_dropout", PROBABILITY),
            },
            only={
                "position_embedding_type": (None, "absolute"),
                # options of the code that the first models were trained with; these have always been its values
                "directionality": ("bidi",),
                "pooler_type": ("first_token_transform",),
            },
            harmless=(
                *"classifier_dropout num_labels".split(),  # heads for classes
                *"output_past num_return_sequences".split(),  # of releases before 3.0
                # read by nobody
                *"pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head".split(),
            ),
            defaults={
                "vocab_size": 30522,
                "d_model": 768,
                "n_layers": 12,
                "n_heads": 12,
                "d_ff": 3072,
                "max_positions": 512,
                "n_types": 2,
                "norm_eps": 1e-12,
                "activation": "gelu",
                "causal": False,
                "cross_attention": False,
                "heads": "mlm",
                "tied_head": True,
                "pad_id": 0,
                "dropout": 0.1,
                "attention_dropout": 0.1,
            },
            tensors_say={"heads": _heads},
        ),
    },
    tables={"hf": hf, "transformers5": transformers5},
    trunk="bert.",
)
