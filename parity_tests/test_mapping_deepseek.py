"""What DeepSeek-V3's mapping has beyond the others': experts held in two ways, further predictors, FP8, its own size."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from parity_tests.harness import hf
from parity_tests.harness.lens import Lens
from parity_tests.harness.record import Backend
from parity_tests.tiny_checkpoints import (
    DEEPSEEK,
    DEEPSEEK_VARIANTS,
    in_memory,
    on_disk,
    same,
    tensors_of,
    write_folder,
)
from weight_mapping import MappingError, load, open_checkpoint, save
from weight_mapping.config import parse_config
from weight_mapping.loading import parameters_of, plan_for

PUBLISHED = Path(__file__).parent / "fixtures/configs/published/DeepSeek-V3.json"
TENSORS = tensors_of(DEEPSEEK)


def their_model(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)


def layout_of(tensors: Mapping[str, Tensor]) -> str:
    return "transformers5" if any("experts.gate_up_proj" in name for name in tensors) else "hf"


def refused(path: Path, *messages: str) -> None:
    with pytest.raises(MappingError) as error:
        load(path)
    for message in messages:
        assert message in str(error.value)
    assert "\n" not in str(error.value)


# --- tensors


@pytest.mark.parametrize("config", DEEPSEEK_VARIANTS.values(), ids=DEEPSEEK_VARIANTS)
def test_both_layouts_give_one_model(config: dict[str, Any], tmp_path: Path) -> None:
    folder = write_folder(tmp_path, config, tensors_of(config))
    ours, theirs = parameters_of(load(folder)), in_memory(their_model(folder))
    mapping = plan_for(*parse_config(config, "hf"), layout_of(theirs))
    assert same(mapping.forward(theirs), ours)
    assert same(mapping.backward(ours), theirs)


def test_keys_and_values_of_every_head_are_taken_apart(tmp_path: Path) -> None:
    ours = parameters_of(load(write_folder(tmp_path, DEEPSEEK, TENSORS)))
    mapping = plan_for(*parse_config(DEEPSEEK, "hf"), "absorbed")
    apart = mapping.backward(ours)
    by_head = TENSORS["model.layers.2.self_attn.kv_b_proj.weight"].view(4, 6 + 5, 11)
    assert torch.equal(apart["model.layers.2.self_attn.k_up_proj.weight"].view(4, 6, 11), by_head[:, :6])
    assert torch.equal(apart["model.layers.2.self_attn.v_up_proj.weight"].view(4, 5, 11), by_head[:, 6:])
    assert same(mapping.forward(apart), ours)


def test_gradients_travel_as_the_weights_do(tmp_path: Path) -> None:
    folder, ids = write_folder(tmp_path, DEEPSEEK, {n: t / 4 for n, t in TENSORS.items()}), torch.arange(9)[None]
    ours = load(folder, dtype=torch.float64)
    theirs: Any = hf.build("DeepseekV3ForCausalLM", folder, "f64", Backend("eager", "eager")).requires_grad_(True)
    ours(ids).logsumexp(-1).sum().backward()
    with Lens():
        loss = theirs(ids).logits.logsumexp(-1).sum()
    loss.backward()
    expected = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    mapping = plan_for(*parse_config(DEEPSEEK, "hf"), layout_of(expected), buffers=False)  # none has a gradient
    made = mapping.backward({name: p.grad for name, p in ours.named_parameters() if p.grad is not None})
    assert made.keys() >= expected.keys()  # where experts are modules, those that nothing chose have none
    norm = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
    for name, gradient in expected.items():
        assert (made[name] - gradient).norm() < 1e-10 * norm
    moments = {name: torch.randn_like(p) for name, p in ours.named_parameters()}  # of an optimizer
    assert same(mapping.forward(mapping.backward(moments)), moments)


# --- layers that predict further tokens

JOINS = ("embed_tokens", "enorm", "hnorm", "eh_proj", "shared_head.norm", "shared_head.head")


def predictor(layer: int = 3) -> dict[str, Tensor]:
    """A layer like the last one and what joins it to the model."""
    block = {
        name.replace("layers.2.", f"layers.{layer}."): t.clone() for name, t in TENSORS.items() if "layers.2." in name
    }
    return block | {f"model.layers.{layer}.{name}.weight": torch.ones(2) for name in JOINS}


@pytest.mark.parametrize("n", [1, 2])
def test_further_predictors_are_dropped(n: int, tmp_path: Path) -> None:
    extra = {name: t for i in range(n) for name, t in predictor(3 + i).items()}
    config = {**DEEPSEEK, "num_nextn_predict_layers": n}
    model = load(write_folder(tmp_path / "hf", config, TENSORS | extra))
    dropped = plan_for(*parse_config(config, "hf"), "hf").dropped((TENSORS | extra).keys())
    assert dropped.keys() == extra.keys()
    assert {drop.reason for drop in dropped.values()} == {"multi-token prediction, apart from the model proper"}
    save(model, tmp_path / "again")
    assert same(dict(open_checkpoint(tmp_path / "again")), TENSORS)
    assert open_checkpoint(tmp_path / "again").config["num_nextn_predict_layers"] == 0


def without(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key: t for key, t in tensors.items() if key != name}


NO_PREDICTORS: dict[str, tuple[dict[str, Tensor], str]] = {
    "a-layer-more": (without(predictor(), "model.layers.3.eh_proj.weight"), "model.layers.3."),
    "unknown-part": ({**predictor(), "model.layers.3.gate.weight": torch.ones(2)}, "'model.layers.3.gate.weight'"),
    "within-the-model": (predictor(2), "tensor 'model.layers.2.eh_proj.weight'"),
    "an-expert-more": (
        {**predictor(), "model.layers.3.mlp.experts.12.up_proj.weight": torch.ones(2)},
        "'model.layers.3.mlp.experts.12.up_proj.weight'",
    ),
}


@pytest.mark.parametrize(("extra", "name"), NO_PREDICTORS.values(), ids=NO_PREDICTORS)
def test_nothing_else_is_dropped(extra: dict[str, Tensor], name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, DEEPSEEK, {**extra, **TENSORS})
    refused(folder, name, "is unexpected, no rule takes it")


# --- the released size


def released() -> Iterator[tuple[str, tuple[int, ...], torch.dtype]]:
    """Names, shapes and dtypes of DeepSeek-V3 in bfloat16, from its paper and the list of its files."""
    bf16, d, latent = torch.bfloat16, 7168, 512
    yield "model.embed_tokens.weight", (129280, d), bf16
    yield "model.norm.weight", (d,), bf16
    yield "lm_head.weight", (129280, d), bf16
    for i in range(62):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (d,), bf16
        yield at + "post_attention_layernorm.weight", (d,), bf16
        yield at + "self_attn.q_a_proj.weight", (1536, d), bf16
        yield at + "self_attn.q_a_layernorm.weight", (1536,), bf16
        yield at + "self_attn.q_b_proj.weight", (128 * 192, 1536), bf16
        yield at + "self_attn.kv_a_proj_with_mqa.weight", (latent + 64, d), bf16
        yield at + "self_attn.kv_a_layernorm.weight", (latent,), bf16
        yield at + "self_attn.kv_b_proj.weight", (128 * 256, latent), bf16
        yield at + "self_attn.o_proj.weight", (d, 128 * 128), bf16
        if i < 3:
            ffns = {"": 18432}
        else:
            ffns = {"shared_experts.": 2048, **{f"experts.{x}.": 2048 for x in range(256)}}
            yield at + "mlp.gate.weight", (256, d), bf16
            yield at + "mlp.gate.e_score_correction_bias", (256,), torch.float32
        for ffn, width in ffns.items():
            yield f"{at}mlp.{ffn}gate_proj.weight", (width, d), bf16
            yield f"{at}mlp.{ffn}up_proj.weight", (width, d), bf16
            yield f"{at}mlp.{ffn}down_proj.weight", (d, width), bf16
    yield "model.layers.61.embed_tokens.weight", (129280, d), bf16
    yield "model.layers.61.enorm.weight", (d,), bf16
    yield "model.layers.61.hnorm.weight", (d,), bf16
    yield "model.layers.61.eh_proj.weight", (d, 2 * d), bf16
    yield "model.layers.61.shared_head.norm.weight", (d,), bf16
    yield "model.layers.61.shared_head.head.weight", (129280, d), bf16


def test_the_released_size() -> None:
    raw = json.loads(PUBLISHED.read_text())
    del raw["quantization_config"]
    family, config = parse_config(raw, "hf")
    tensors = {name: torch.empty(shape, dtype=dtype, device="meta") for name, shape, dtype in released()}
    mapping = plan_for(family, config, "hf")
    dropped = mapping.dropped(tensors)
    assert dropped.keys() == {name for name in tensors if name.startswith("model.layers.61.")}
    assert mapping.sources.keys() == tensors.keys() - dropped.keys()
    parameters = mapping.forward(tensors)
    assert {name: t.shape for name, t in parameters.items()} == {name: t.shape for name, t in mapping.targets.items()}
    assert {name for name, t in parameters.items() if t.dtype == torch.float32} == {
        f"layers.{i}.ffn.router.bias" for i in range(3, 61)
    }
    assert sum(t.numel() for t in parameters.values()) == 671_026_419_200  # the paper: 671B
    fused = plan_for(family, config, "transformers5").backward(parameters)
    assert {name: (t.shape, t.dtype) for name, t in on_disk(fused).items()} == {
        name: (t.shape, t.dtype) for name, t in tensors.items() if name not in dropped
    }


# --- FP8


def test_fp8_by_its_config() -> None:
    with pytest.raises(
        MappingError, match="quantised weights, FP8 among them, are not supported yet: take or make a copy"
    ):
        parse_config(json.loads(PUBLISHED.read_text()), "hf")


NAME = "model.layers.1.self_attn.kv_b_proj.weight"
FP8: dict[str, tuple[dict[str, Tensor], str]] = {
    "scales": ({f"{NAME}_scale_inv": torch.ones(1, 1)}, f"tensor '{NAME}_scale_inv' holds the scales of FP8 weights"),
    "weights": ({NAME: TENSORS[NAME].to(torch.float8_e4m3fn)}, f"tensor '{NAME}' is torch.float8_e4m3fn"),
}


@pytest.mark.parametrize(("changes", "message"), FP8.values(), ids=FP8)
def test_fp8_by_its_tensors(changes: dict[str, Tensor], message: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, DEEPSEEK, {**TENSORS, **changes})
    refused(folder, message, "FP8 is not supported yet: take or make a copy of the checkpoint in bfloat16")


# --- a config that contradicts its tensors

CONTRADICTIONS = {
    "no-q-lora": ({"q_lora_rank": None}, "is unexpected, no rule takes it; config.json says q_lora_rank null"),
    "latent": ({"kv_lora_rank": 12}, "config.json says kv_lora_rank 12"),
    "value-width": ({"v_head_dim": 6}, "v_head_dim 6"),
    "experts": ({"n_routed_experts": 16}, "config.json says n_routed_experts 16"),
    "fewer-experts": ({"n_routed_experts": 8}, "is unexpected, no rule takes it; config.json says n_routed_experts 8"),
    "shared": ({"n_shared_experts": 1}, "config.json says moe_intermediate_size 28 and n_shared_experts 1"),
    "more-dense": ({"first_k_dense_replace": 2}, "first_k_dense_replace 2"),
    "fewer-layers": ({"num_hidden_layers": 2}, "is unexpected, no rule takes it; config.json says num_hidden_layers 2"),
}


@pytest.mark.parametrize(("changes", "message"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_config_that_contradicts_its_tensors(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    refused(write_folder(tmp_path, {**DEEPSEEK, **changes}, TENSORS), message)
