"""PoolFormer. Yu et al. 2022."""

from typing import Any

from reference_impl.ffn import ACTIVATIONS
from reference_impl.models.poolformer import PoolFormerConfig, PoolFormerModel
from weight_mapping.container import Value
from weight_mapping.family import COUNT, FLAG, POSITIVE, PROBABILITY, TEXT, Check, Family, Fields, Key, Kind, Layout
from weight_mapping.rules import Rule, Table, rename

SCALES = {"mixer_scale": "layer_scale_1", "ffn_scale": "layer_scale_2"}


def hf(config: PoolFormerConfig) -> Table:
    """The names of the hub: model.safetensors as transformers writes it. Layers are counted from 0 in each stage."""
    embed = "poolformer.encoder.patch_embeddings.{stage}.projection.{part}"
    rules = [rename(embed, "embeds.{stage}.{part}")]
    for stage in range(len(config.depths)):
        rules += _stage(f"poolformer.encoder.block.{stage}.{{layer{stage}}}.", f"layers.{stage}.{{layer{stage}}}.")
    rules += [rename("norm.{part}", "norm.{part}"), rename("classifier.{part}", "classifier.{part}")]
    layers = {f"layer{stage}": range(depth) for stage, depth in enumerate(config.depths)}
    return Table(index={"stage": range(len(config.depths)), "part": ("weight", "bias"), **layers}, rules=tuple(rules))


def _stage(here: str, there: str) -> list[Rule]:
    return [
        rename(here + "before_norm.{part}", there + "mixer_norm.{part}"),
        rename(here + "after_norm.{part}", there + "ffn_norm.{part}"),
        rename(here + "output.conv1.{part}", there + "ffn.in_proj.{part}"),
        rename(here + "output.conv2.{part}", there + "ffn.out_proj.{part}"),
        *(rename(here + source, there + target) for target, source in SCALES.items()),
    ]


def _list_of(least: int) -> Kind:
    def read(value: Value) -> tuple[int, ...] | None:
        whole = isinstance(value, list) and value and all(type(each) is int and each >= least for each in value)
        return tuple(value) if whole else None  # pyright: ignore[reportArgumentType, reportReturnType]

    return Kind(f"a list of whole numbers of {least} or more, one a stage", read, list)


def _names(count: int) -> dict[str, Value]:
    return {str(i): f"LABEL_{i}" for i in range(count)}


COUNTS, WHOLES = _list_of(1), _list_of(0)
LABELS = Kind("an object of one name a class", lambda v: len(v) if isinstance(v, dict) and v else None, _names)


def _one_a_stage(fields: Fields) -> bool:
    return len({len(fields[name]) for name in ("widths", "depths", "patch_sizes", "strides", "paddings")}) == 1


_DEFAULTS: dict[str, Any] = {
    "n_channels": 3,
    "widths": (64, 128, 320, 512),
    "depths": (2, 2, 6, 2),
    "patch_sizes": (7, 3, 3, 3),
    "strides": (4, 2, 2, 2),
    "paddings": (2, 1, 1, 1),
    "pool_size": 3,
    "mlp_ratio": 4.0,
    "activation": "gelu",
    "layer_scale": True,
    "drop_path": 0.0,
    "n_classes": 2,
}

FAMILY = Family(
    architecture="PoolFormerForImageClassification",
    config=PoolFormerConfig,
    model=PoolFormerModel,
    checks=(
        Check(f"{{activation}} is not one of {', '.join(ACTIVATIONS)}", lambda f: f["activation"] in ACTIVATIONS),
        Check("{widths}, {depths}, {patch_sizes}, {strides} and {paddings} have not one entry a stage", _one_a_stage),
        Check("{pool_size} is even, and so has no middle", lambda f: f["pool_size"] % 2 == 1),
    ),
    layouts={
        "hf": Layout(
            names=("poolformer",),
            keys={
                "num_channels": Key("n_channels", COUNT),
                "hidden_sizes": Key("widths", COUNTS),
                "depths": Key("depths", COUNTS),
                "patch_sizes": Key("patch_sizes", COUNTS),
                "strides": Key("strides", COUNTS),
                "padding": Key("paddings", WHOLES),
                "pool_size": Key("pool_size", COUNT),
                "mlp_ratio": Key("mlp_ratio", POSITIVE),
                "hidden_act": Key("activation", TEXT),
                "use_layer_scale": Key("layer_scale", FLAG),
                "drop_path_rate": Key("drop_path", PROBABILITY),
                "id2label": Key("n_classes", LABELS),
            },
            only={},
            harmless=(
                "layer_scale_init_value",  # how training begins
                "tie_word_embeddings",  # there are none
                *"patch_size stride".split(),  # read by nobody: each stage has its own
            ),
            defaults=_DEFAULTS,
            implied={"num_encoder_blocks": lambda c: len(c.depths)},
        ),
    },
    tables={"hf": hf, "transformers5": hf},
    trunk="poolformer.",
)
