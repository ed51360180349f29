"""Configs near the fixtures that a family documents as legal: small changes, by the fields that they turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import Any

from packaging.version import Version


@dataclass(frozen=True)
class Change:
    """fields: of config.json, and their values. families: patterns of those that it is made in; all that have the fields."""

    name: str
    fields: Mapping[str, Any]
    families: tuple[str, ...] = ("*",)

    def concerns(self, family: str, config: Mapping[str, Any]) -> bool:
        """Whether it is made in a family, whose config class has these fields."""
        return any(fnmatchcase(family, each) for each in self.families) and all(name in config for name in self.fields)


@dataclass(frozen=True, kw_only=True)
class Broken:
    """What transformers makes of a legal config: the steps that raise, or give what the reference does not.

    without: the package that has to be missing.
    """

    families: tuple[str, ...]
    change: str
    steps: tuple[str, ...]
    what: str
    since: str = "0"
    until: str | None = None
    without: str | None = None

    def concerns(self, family: str, change: str, version: str) -> bool:
        """Whether it is to be expected here."""
        later = self.until is not None and Version(version) >= Version(self.until)
        here = family in self.families and change == self.change
        here = here and (self.without is None or find_spec(self.without) is None)
        return here and not later and Version(version) >= Version(self.since)


DECODERS = ("llama", "mistral", "mixtral", "qwen*")
LATENT = ("deepseek_*",)
LIKE_QWEN = ("qwen*",)


def _each(field: str, *values: Any, families: tuple[str, ...] = ("*",)) -> list[Change]:
    """One field by itself, at each of these."""
    return [Change(f"{field}={value}".replace(" ", ""), {field: value}, families) for value in values]


CHANGES = (
    Change("as-it-is", {}),
    *_each("num_hidden_layers", 1),
    *_each("n_layer", 1),
    *_each("num_layers", 1, 4),
    *_each("num_decoder_layers", 1, 4),
    *_each("encoder_layers", 1, 4),
    *_each("decoder_layers", 1, 4),
    *_each("vocab_size", 1, 2, families=(*DECODERS, *LATENT)),
    *_each("vocab_size", 97),
    Change("one-head", {"num_attention_heads": 1, "num_key_value_heads": 1}),
    Change("one-head", {"num_attention_heads": 1}, ("bert",)),
    *_each("n_head", 1),
    *_each("num_heads", 1),
    *_each("encoder_attention_heads", 1),
    *_each("decoder_attention_heads", 1),
    *_each("num_key_value_heads", 1, families=(*DECODERS, *LATENT)),
    Change("odd-width", {"hidden_size": 27, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}, DECODERS),
    *_each("head_dim", 2, 64, families=DECODERS),
    *_each("attention_bias", True),
    *_each("tie_word_embeddings", True),
    *_each("tie_word_embeddings", False, families=("[!b]*", "bart")),  # BERT's file has a bias under two names then
    Change("tied-biased", {"tie_word_embeddings": True, "attention_bias": True}),
    *_each("attention_dropout", 1.0),
    *_each("dropout_rate", 1.0),
    Change("dropout-1", {"hidden_dropout_prob": 1.0}, ("bert", "fnet")),
    Change("dropout-1", {"resid_pdrop": 1.0, "embd_pdrop": 1.0, "attn_pdrop": 1.0}),
    Change("dropout-1", {"dropout": 1.0, "activation_dropout": 1.0}, ("bart", "marian")),
    *_each("sliding_window", 1, 2, 1000, families=("mistral", "mixtral")),
    *(
        Change(f"sliding_window={n}", {"use_sliding_window": True, "sliding_window": n, "max_window_layers": 0}, LIKE_QWEN)
        for n in (1, 2, None)
    ),
    *_each("num_experts_per_tok", 1),
    Change("all-experts", {"num_local_experts": 4, "num_experts_per_tok": 4}, ("mixtral",)),
    Change("one-expert", {"num_local_experts": 1, "num_experts_per_tok": 1}, ("mixtral",)),
    Change("all-experts", {"num_experts": 4, "num_experts_per_tok": 4}, LIKE_QWEN),
    Change("one-expert", {"num_experts": 1, "num_experts_per_tok": 1}, LIKE_QWEN),
    *_each("decoder_sparse_step", 2, 9),
    *_each("mlp_only_layers", [0], [0, 1, 2]),
    Change("one-expert", {"n_routed_experts": 1, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1}, LATENT),
    Change("one-expert-a-group", {"n_routed_experts": 8, "n_group": 8, "topk_group": 3, "num_experts_per_tok": 2}, LATENT),
    Change("all-experts", {"n_routed_experts": 8, "num_experts_per_tok": 8, "n_group": 2, "topk_group": 2}, LATENT),
    *_each("n_shared_experts", 1, 3, None),
    *_each("first_k_dense_replace", 0, 9),
    *_each("qk_nope_head_dim", 1, 2),
    *_each("qk_rope_head_dim", 2),
    *_each("v_head_dim", 1, 32),
    *_each("q_lora_rank", 1, None),
    *_each("kv_lora_rank", 1),
    *_each("routed_scaling_factor", 0.0),
    *_each("scale_embedding", True, False),
    *_each("share_encoder_decoder_embeddings", False),
    *_each("d_kv", 1),
    *_each("type_vocab_size", 1, families=("bert", "fnet")),
    *_each("n_inner", 1, None),
    *_each("chunk_size_feed_forward", 4, families=("bert",)),
    *_each("expand", 1, 3),
    *_each("conv_kernel", 1, 2, families=("mamba",)),
    *_each("state_size", 1, families=("mamba",)),
    *_each("time_step_rank", 1),
    *_each("use_conv_bias", False, families=("mamba",)),
    *_each("rescale_every", 0, 1),
    *_each("attention_hidden_size", 32),
    *_each("pool_size", 1, 5),
    *_each("use_layer_scale", False),
    *_each("num_channels", 1),
    *_each("use_tpu_fourier_optimizations", True),
)

ALL = ("forward", "train", "generate")

BROKEN = (
    Broken(
        families=("llama",),
        change="odd-width",
        steps=ALL,
        what="a hidden_size that is no multiple of the heads is refused although head_dim is given",
        since="5.0.0",
    ),
    Broken(
        families=("qwen2_moe",),
        change="sliding_window=None",
        steps=ALL,
        what="a window that is asked for and not given raises, where Qwen2, Qwen3 and Qwen3-MoE have none",
        since="5.0.0",
    ),
    *(
        Broken(
            families=("qwen2_moe",),
            change=f"sliding_window={n}",
            steps=("forward",),
            what="max_window_layers counts the layers with a window, every second of them, instead of those without",
            since="5.0.0",
        )
        for n in (1, 2)
    ),
    *(
        Broken(
            families=("deepseek_v2",),
            change=change,
            steps=ALL,
            what="an odd qk_nope_head_dim or kv_lora_rank raises: view_as_complex wants even strides",
        )
        for change in ("qk_nope_head_dim=1", "kv_lora_rank=1")
    ),
    Broken(
        families=("bert",),
        change="chunk_size_feed_forward=4",
        steps=ALL,
        what="a chunk size that does not divide the number of tokens raises",
    ),
    Broken(
        families=("fnet",),
        change="use_tpu_fourier_optimizations=True",
        steps=("forward", "train"),
        what="without SciPy a model for TPUs cannot be made: it warns through a function that is not there",
        without="scipy",
    ),
    Broken(families=("rwkv",), change="num_hidden_layers=1", steps=ALL, what="one layer divides by zero", since="5.0.0"),
    Broken(
        families=("rwkv",),
        change="attention_hidden_size=32",
        steps=("forward", "generate"),
        what="an attention_hidden_size other than hidden_size crashes with a state",
    ),
    *(
        Broken(
            families=("t5",),
            change=change,
            steps=("generate",),
            what="a decoder deeper than the encoder cannot generate: IndexError",
            since=since,
            until=until,
        )
        for change in ("num_layers=1", "num_decoder_layers=4")
        for since, until in (("4.54.0", "5.0.0"), ("5.1.0", None))
    ),
    Broken(
        families=("bart",),
        change="tie_word_embeddings=False",
        steps=("forward",),
        what="without a tied head, embeddings that the file holds once stay random on both sides",
    ),
    Broken(
        families=("marian",),
        change="tie_word_embeddings=False",
        steps=("forward",),
        what="without a tied head, embeddings that the file holds once stay random on both sides",
        since="5.0.0",
    ),
)
