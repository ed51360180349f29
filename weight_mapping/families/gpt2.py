"""GPT-2, with and without attention to an encoder's memory. Radford et al. 2019."""

from reference_impl.ffn import ACTIVATIONS
from reference_impl.models.gpt2 import GPT2Config, GPT2Model
from weight_mapping.family import COUNT, FLAG, POSITIVE, PROBABILITY, TEXT, Check, Family, Key, Layout
from weight_mapping.rules import Drop, Rule, Split, Table, Transpose, rename, tie

HERE, THERE = "transformer.h.{layer}.", "layers.{layer}."


def hf(config: GPT2Config) -> Table:
    """The names of the hub. Projections are stored as (in, out), those that read one input side by side."""
    words, head, d = "transformer.wte.weight", "lm_head.weight", config.d_model
    apart = (rename(words, "embed.weight"), rename(head, "lm_head.weight"))
    return Table(
        index={"layer": range(config.n_layers), "part": ("weight", "bias")},
        rules=(
            *((tie((words, head), "embed.weight"),) if config.tied_head else apart),
            rename("transformer.wpe.weight", "positions.weight"),
            rename(HERE + "ln_1.{part}", THERE + "attn_norm.{part}"),
            *_conv1d("attn.c_attn", ("attn.q_proj", "attn.k_proj", "attn.v_proj"), d),
            *_conv1d("attn.c_proj", ("attn.o_proj",), d),
            rename(HERE + "ln_cross_attn.{part}", THERE + "cross_norm.{part}"),
            *_conv1d("crossattention.q_attn", ("cross.q_proj",), d),
            *_conv1d("crossattention.c_attn", ("cross.k_proj", "cross.v_proj"), d),
            *_conv1d("crossattention.c_proj", ("cross.o_proj",), d),
            rename(HERE + "ln_2.{part}", THERE + "ffn_norm.{part}"),
            *_conv1d("mlp.c_fc", ("ffn.in_proj",), config.d_ff),
            *_conv1d("mlp.c_proj", ("ffn.out_proj",), d),
            rename("transformer.ln_f.{part}", "norm.{part}"),
        ),
        drops=tuple(
            Drop(source=f"{HERE}{block}.{name}", reason="the causal mask, a buffer that old releases stored")
            for block in ("attn", "crossattention")
            for name in ("bias", "masked_bias")
        ),
    )


def _conv1d(source: str, targets: tuple[str, ...], width: int) -> tuple[Rule, Rule]:
    """A matrix (in, out) and its bias to one projection, or to several of this width."""
    parts = (Split((width,) * len(targets)),) if len(targets) > 1 else ()
    return (
        Rule((f"{HERE}{source}.weight",), tuple(f"{THERE}{t}.weight" for t in targets), (Transpose(), *parts)),
        Rule((f"{HERE}{source}.bias",), tuple(f"{THERE}{t}.bias" for t in targets), parts),
    )


FAMILY = Family(
    architecture="GPT2LMHeadModel",
    config=GPT2Config,
    model=GPT2Model,
    checks=(
        Check("{d_model} is no multiple of {n_heads}", lambda f: f["d_model"] % f["n_heads"] == 0),
        Check(f"{{activation}} is not one of {', '.join(ACTIVATIONS)}", lambda f: f["activation"] in ACTIVATIONS),
    ),
    layouts={
        "hf": Layout(
            names=("gpt2",),
            keys={
                "vocab_size": Key("vocab_size", COUNT),
                "n_embd": Key("d_model", COUNT),
                "n_inner": Key("d_ff", COUNT),
                "n_layer": Key("n_layers", COUNT),
                "n_head": Key("n_heads", COUNT),
                "n_positions": Key("max_positions", COUNT),
                "hidden_size": Key("d_model", COUNT),  # names that transformers takes as well
                "num_hidden_layers": Key("n_layers", COUNT),
                "num_attention_heads": Key("n_heads", COUNT),
                "max_position_embeddings": Key("max_positions", COUNT),
                "layer_norm_epsilon": Key("norm_eps", POSITIVE),
                "activation_function": Key("activation", TEXT),
                "scale_attn_weights": Key("scaled", FLAG),
                "scale_attn_by_inverse_layer_idx": Key("scaled_by_layer", FLAG),
                "add_cross_attention": Key("cross_attention", FLAG),
                "tie_word_embeddings": Key("tied_head", FLAG),
                "embd_pdrop": Key("embedding_dropout", PROBABILITY),
                "resid_pdrop": Key("dropout", PROBABILITY),
                "attn_pdrop": Key("attention_dropout", PROBABILITY),
            },
            only={},
            harmless=(
                "summary_*",  # the head for choices
                "reorder_and_upcast_attn",  # in which precision scores are computed
                "n_ctx",  # n_positions in old files
                *"predict_special_tokens num_labels output_past".split(),
                "condition_on_*",  # IgLM: which tags its texts begin with
            ),
            defaults={
                "vocab_size": 50257,
                "d_model": 768,
                "n_layers": 12,
                "n_heads": 12,
                "d_ff": lambda f: 4 * f["d_model"],
                "max_positions": 1024,
                "norm_eps": 1e-5,
                "activation": "gelu_new",
                "scaled": True,
                "scaled_by_layer": False,
                "cross_attention": False,
                "tied_head": True,
                "embedding_dropout": 0.1,
                "dropout": 0.1,
                "attention_dropout": 0.1,
            },
        ),
    },
    tables={"hf": hf, "transformers5": hf},
    trunk="transformer.",
)
