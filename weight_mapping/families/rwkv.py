"""RWKV-4. Peng et al. 2023."""

from dataclasses import replace

from reference_impl.models.rwkv import RwkvConfig, RwkvModel
from weight_mapping.family import COUNT, FLAG, POSITIVE, Family, Key, Kind, Layout
from weight_mapping.rules import Table, rename, tie

HERE, THERE = "rwkv.blocks.{layer}.", "layers.{layer}."

SHIFTS = {"key": "k", "value": "v", "receptance": "r"}


def hf(config: RwkvConfig) -> Table:
    """The names of the hub: model.safetensors as transformers writes it for a model that has not been run yet."""
    embedding, head = "rwkv.embeddings.weight", "head.weight"
    both = (rename(embedding, "embed.weight"), rename(head, "lm_head.weight"))
    time, channel = (HERE + "attention.", THERE + "time."), (HERE + "feed_forward.", THERE + "channel.")
    return Table(
        index={"layer": range(config.n_layers), "part": ("weight", "bias")},
        rules=(
            *((tie((embedding, head), "embed.weight"),) if config.tied_head else both),
            rename(HERE + "pre_ln.{part}", THERE + "embed_norm.{part}"),
            rename(HERE + "ln1.{part}", THERE + "time_norm.{part}"),
            rename(time[0] + "time_decay", time[1] + "decay_log"),
            rename(time[0] + "time_first", time[1] + "first"),
            rename(time[0] + "output.weight", time[1] + "o_proj.weight"),
            rename(HERE + "ln2.{part}", THERE + "channel_norm.{part}"),
            *(
                rule
                for here, there in (time, channel)
                for name, letter in SHIFTS.items()
                for rule in (
                    rename(f"{here}time_mix_{name}", f"{there}{letter}_shift.weight"),
                    rename(f"{here}{name}.weight", f"{there}{letter}_proj.weight"),
                )
            ),
            rename("rwkv.ln_out.{part}", "norm.{part}"),
        ),
    )


def _period(value: object) -> int | None:
    return max(value, 0) if type(value) is int else None


PERIOD = Kind("a whole number, of which all below 1 mean never", _period)

FAMILY = Family(
    architecture="RwkvForCausalLM",
    config=RwkvConfig,
    model=RwkvModel,
    checks=(),
    layouts={
        "hf": Layout(
            names=("rwkv",),
            keys={
                "vocab_size": Key("vocab_size", COUNT),
                "hidden_size": Key("d_model", COUNT),
                "num_hidden_layers": Key("n_layers", COUNT),
                "attention_hidden_size": Key("d_inner", replace(COUNT, says="a whole number above 0 or null")),
                "intermediate_size": Key("d_ff", replace(COUNT, says="a whole number above 0 or null")),
                "layer_norm_epsilon": Key("norm_eps", POSITIVE),
                "rescale_every": Key("halve_every", PERIOD),
                "tie_word_embeddings": Key("tied_head", FLAG),
            },
            only={},
            harmless=("context_length",),  # how far a kernel for training reaches
            defaults={
                "vocab_size": 50277,
                "d_model": 4096,
                "n_layers": 32,
                "d_inner": lambda f: f["d_model"],
                "d_ff": lambda f: 4 * f["d_model"],
                "norm_eps": 1e-5,
                "halve_every": 6,
                "tied_head": False,
            },
        ),
    },
    tables={"hf": hf, "transformers5": hf},
    trunk="rwkv.",
)
