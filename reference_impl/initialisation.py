"""What parameters begin as, before any training: a law a parameter, from what configs and papers state.

Tables are read from the top: the first pattern that a parameter's name matches gives its law. `said` holds those keys of
config.json that are of the beginning alone, and which no model of the reference has; what it lacks has the published value.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

Said = Mapping[str, Any]


@dataclass(frozen=True)
class Normal:
    """Independent numbers around 0. zero_row: a row that is 0 instead, of the token that is padding."""

    std: float
    zero_row: int | None = None


@dataclass(frozen=True)
class Uniform:
    """Independent numbers between -bound and bound."""

    bound: float


@dataclass(frozen=True)
class Orthogonal:
    """Rows, or columns where they are fewer, at right angles and of length `gain`."""

    gain: float


@dataclass(frozen=True)
class StepSizes:
    """softplus of it is spread evenly in its logarithm from `low` to `high`, and `floor` where it would be less."""

    low: float
    high: float
    floor: float


@dataclass(frozen=True, eq=False)
class Given:
    """These numbers, whatever the seed."""

    values: Tensor | float


Law = Normal | Uniform | Orthogonal | StepSizes | Given
ByName = Callable[[str, tuple[int, ...]], Law]
Rules = tuple[tuple[str, Law | ByName], ...]
Table = Callable[[Any, Said], Rules]

ZERO, ONE = Given(0.0), Given(1.0)


def laws(table: Table, config: Any, said: Said, parameters: Mapping[str, Tensor]) -> dict[str, Law]:
    """The law of every parameter, by name. Errors: KeyError when the table has none for it."""
    rules, found = table(config, said), {}
    for name, parameter in parameters.items():
        law = next((law for pattern, law in rules if fnmatchcase(name, pattern)), None)
        if law is None:
            raise KeyError(f"nothing says what {name!r} begins as")
        found[name] = law(name, tuple(parameter.shape)) if callable(law) else law
    return found


def _from_a_normal(std: float, padding: int | None) -> Rules:
    return (
        ("*norm.weight", ONE),
        ("*bias", ZERO),
        ("embed.weight", Normal(std, padding)),
        ("embed.tokens.weight", Normal(std, padding)),
        ("encoder.embed.weight", Normal(std, padding)),
        ("decoder.embed.weight", Normal(std, padding)),
        ("*", Normal(std)),
    )


def decoder(config: Any, said: Said) -> Rules:
    """Llama and its relatives, with and without experts: everything from one normal distribution."""
    return _from_a_normal(said.get("initializer_range", 0.02), said.get("pad_token_id"))


def encoder(config: Any, said: Said) -> Rules:
    """BERT (Devlin et al. 2019) and FNet: the same; not cut off at two deviations, as BERT's own code has it."""
    return _from_a_normal(said.get("initializer_range", 0.02), config.pad_id)


def both_sides(config: Any, said: Said) -> Rules:
    """BART and Marian: the same under another name."""
    return _from_a_normal(said.get("init_std", 0.02), config.pad_id)


def gpt2(config: Any, said: Said) -> Rules:
    """Radford et al. 2019: what is added to the residual is less by the root of how often something is."""
    std = said.get("initializer_range", 0.02)
    added = Normal(std / math.sqrt(2 * config.n_layers))
    return (("*.o_proj.weight", added), ("*.ffn.out_proj.weight", added), *_from_a_normal(std, None))


def t5(config: Any, said: Said) -> Rules:
    """Raffel et al. 2020: by the width that is summed over, and scores are not scaled but by their queries."""
    factor = said.get("initializer_factor", 1.0)

    def summed_over(*widths: int) -> Normal:
        return Normal(factor * math.prod(widths) ** -0.5)

    return (
        ("*norm.weight", Given(factor)),
        ("*embed.weight", Normal(factor)),
        ("lm_head.weight", Normal(factor)),
        ("*.q_proj.weight", summed_over(config.d_model, config.d_head)),
        ("*.o_proj.weight", summed_over(config.n_heads, config.d_head)),
        ("*.ffn.out_proj.weight", summed_over(config.d_ff)),
        ("*.ffn.down_proj.weight", summed_over(config.d_ff)),
        ("*", summed_over(config.d_model)),
    )


def poolformer(config: Any, said: Said) -> Rules:
    """Yu et al. 2022: each branch of a layer begins next to nothing."""
    scale = Given(said.get("layer_scale_init_value", 1e-5))
    return (("*_scale", scale), *_from_a_normal(said.get("initializer_range", 0.02), None))


def mamba(config: Any, said: Said) -> Rules:
    """Gu and Dao 2023: A is the numbers from 1 to n in each channel, D is 1, steps are of all sizes."""
    wide = said.get("time_step_scale", 1.0) * config.dt_rank**-0.5
    steps = StepSizes(
        said.get("time_step_min", 0.001), said.get("time_step_max", 0.1), said.get("time_step_floor", 1e-4)
    )
    levels = torch.arange(1, config.d_state + 1, dtype=torch.float32).log()
    inner = config.expand * config.d_model
    residual = math.sqrt(config.n_layers) if said.get("rescale_prenorm_residual", False) else 1.0
    return (
        ("*.a_log", Given(levels)),
        ("*.mixer.d", ONE),
        ("*.dt_proj.bias", steps),
        ("*.dt_proj.weight", Uniform(wide) if said.get("time_step_init_scheme", "random") == "random" else Given(wide)),
        ("*.conv.weight", Uniform(config.conv_width**-0.5)),
        ("*.out_proj.weight", Uniform(inner**-0.5 / residual)),
        *_from_a_normal(said.get("initializer_range", 0.1), None),
    )


def rwkv(config: Any, said: Said) -> Rules:
    """Peng et al. 2023, appendix: decays and shares of the token before by channel and layer."""

    def channels(name: str, shape: tuple[int, ...]) -> tuple[Tensor, int]:
        return torch.arange(shape[-1], dtype=torch.float32), int(name.split(".")[1])

    def depth(layer: int) -> float:
        return layer / (config.n_layers - 1)

    def decays(name: str, shape: tuple[int, ...]) -> Law:
        i, layer = channels(name, shape)
        return Given(-5 + 8 * (i / (shape[-1] - 1)) ** (0.7 + 1.3 * depth(layer)))

    def first(name: str, shape: tuple[int, ...]) -> Law:
        i, _ = channels(name, shape)
        return Given(math.log(0.3) + 0.5 * ((i + 1) % 3 - 1))

    def shares(power: float, more: float) -> ByName:
        def share(name: str, shape: tuple[int, ...]) -> Law:
            i, layer = channels(name, shape)
            return Given((i / shape[-1]) ** (power * (1 - layer / config.n_layers)) + more * depth(layer))

        return share

    def stretched(by: float) -> ByName:
        """Longer where there are more outputs than inputs."""
        return lambda name, shape: Orthogonal(by * math.sqrt(max(shape[0] / shape[1], 1.0)))

    return (
        ("*.decay_log", decays),
        ("*.time.first", first),
        ("*.time.v_shift.weight", shares(1.0, 0.3)),
        ("*.time.r_shift.weight", shares(0.5, 0.0)),
        ("*_shift.weight", shares(1.0, 0.0)),
        ("*norm.weight", ONE),
        ("*norm.bias", ZERO),
        ("embed.weight", lambda name, shape: Orthogonal(1e-4 * math.sqrt(max(shape)))),
        ("lm_head.weight", stretched(0.5)),
        ("*.weight", stretched(1.0)),
    )
