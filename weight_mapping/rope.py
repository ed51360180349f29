"""RoPE in configs: the keys of both generations of config.json and of GGUF, and which scaling needs which."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import torch

from reference_impl.rope_scaling import Divided, DynamicNTK, Linear, Llama3, LongRoPE, Unscaled, YaRN
from weight_mapping.family import AMOUNT, COUNT, FLAG, NUMBERS, POSITIVE, TEXT, Default, Key

_POSITIVE_OR_UNSET = replace(POSITIVE, absent=(None, 0))
_PARTS = {
    "rope_type": Key("rope.type", TEXT),
    "type": Key("rope.type", TEXT),  # the name before transformers 4.43
    "rope_theta": Key("rope.theta", POSITIVE),
    "factor": Key("rope.factor", POSITIVE),
    "original_max_position_embeddings": Key("rope.original_positions", COUNT),
    "beta_fast": Key("rope.beta_fast", _POSITIVE_OR_UNSET),
    "beta_slow": Key("rope.beta_slow", _POSITIVE_OR_UNSET),
    "truncate": Key("rope.rounded", replace(FLAG, absent=())),  # null has been read as false: let the file say
    "attention_factor": Key("rope.attention_factor", POSITIVE),
    "mscale": Key("rope.mscale", AMOUNT),
    "mscale_all_dim": Key("rope.mscale_all_dim", AMOUNT),
    "low_freq_factor": Key("rope.low_freq_factor", POSITIVE),
    "high_freq_factor": Key("rope.high_freq_factor", POSITIVE),
    "short_factor": Key("rope.short_factor", NUMBERS),
    "long_factor": Key("rope.long_factor", NUMBERS),
}

HF_ROPE_KEYS = {
    "rope_theta": _PARTS["rope_theta"],
    **{f"rope_scaling.{part}": key for part, key in _PARTS.items()},  # transformers 4
    **{f"rope_parameters.{part}": key for part, key in _PARTS.items()},  # transformers 5
    "original_max_position_embeddings": _PARTS["original_max_position_embeddings"],
}


def gguf_rope_keys(architecture: str) -> dict[str, Key]:
    """The keys of one architecture. GGUF knows no dynamic scaling, and keeps what llama3's comes to in a tensor."""
    return {
        f"{architecture}.rope.freq_base": Key("rope.theta", POSITIVE),
        f"{architecture}.rope.scaling.type": Key("rope.type", replace(TEXT, absent=(None, "none"))),
        f"{architecture}.rope.scaling.factor": Key("rope.factor", POSITIVE),
        f"{architecture}.rope.scaling.original_context_length": Key("rope.original_positions", COUNT),
        f"{architecture}.rope.scaling.yarn_beta_fast": Key("rope.beta_fast", POSITIVE),
        f"{architecture}.rope.scaling.yarn_beta_slow": Key("rope.beta_slow", POSITIVE),
    }


@dataclass(frozen=True)
class Scaling:
    """A scaling of the reference, and the defaults of those of its fields that need not be given.

    one_a_pair: the fields that list a number for each rotary pair. beside: the keys that transformers 4 looks for
    beside rope_scaling and not in it.
    """

    make: type[Unscaled]
    defaults: Mapping[str, Default] = field(default_factory=dict)
    one_a_pair: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of its fields among those of a config."""
        return tuple(f"rope.{part.name}" for part in fields(self.make))

    @property
    def needed(self) -> tuple[str, ...]:
        """Those that a layout must be able to say: all that have no default."""
        return tuple(part for part in self.parts if part not in self.defaults)


SCALINGS = {
    "default": Scaling(Unscaled),
    "linear": Scaling(Linear),
    "dynamic": Scaling(DynamicNTK, {"rope.max_positions": lambda f: f["max_positions"]}),
    "yarn": Scaling(
        YaRN,
        {
            "rope.original_positions": lambda f: f["max_positions"],
            "rope.factor": lambda f: f["max_positions"] / f["rope.original_positions"],
            "rope.beta_fast": 32.0,
            "rope.beta_slow": 1.0,
            "rope.rounded": True,
            "rope.attention_factor": None,
            "rope.mscale": None,
            "rope.mscale_all_dim": None,
        },
    ),
    "divided": Scaling(Divided, one_a_pair=("rope.divisors",)),  # a layout that has no key for them does not know it
    "llama3": Scaling(Llama3, {"rope.original_positions": lambda f: f["max_positions"]}),
    "longrope": Scaling(
        LongRoPE,
        {
            "rope.original_positions": lambda f: f["max_positions"],
            "rope.factor": lambda f: f["max_positions"] / f["rope.original_positions"],
            "rope.attention_factor": None,
        },
        one_a_pair=("rope.short_factor", "rope.long_factor"),
        beside=("original_max_position_embeddings",),
    ),
}


LLAMA3S_OWN = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_positions": 8192}
"""What Llama 3.1 to 3.3 have, whose factor is 8 or 32."""


def as_llama3(scaling: Divided, theta: float, width: int) -> Llama3 | None:
    """The llama3 scaling that gives the frequencies of these divisors, bit for bit; None where Llama's own does not."""
    said = Llama3(factor=max(scaling.divisors), **LLAMA3S_OWN)
    equal = torch.equal(said.frequencies(theta, width, 1), scaling.frequencies(theta, width, 1))
    return said if equal else None
