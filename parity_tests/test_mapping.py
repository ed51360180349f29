"""Checkpoints there and back, bit for bit, in every layout. transformers is the second witness."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from parity_tests.harness.lens import Lens
from parity_tests.tiny_checkpoints import (
    CONFIG,
    DEEPSEEK,
    DEEPSEEK_VARIANTS,
    VARIANTS,
    in_memory,
    on_disk,
    same,
    side_by_side,
    tensors_of,
    write_folder,
    write_gguf,
    write_shards,
)
from reference_impl.rope_scaling import inverse_frequencies
from weight_mapping import MappingError, load, open_checkpoint, save
from weight_mapping.config import parse_config
from weight_mapping.loading import parameters_of, plan_for

ALL_VARIANTS = {**VARIANTS, **DEEPSEEK_VARIANTS}


def test_nothing_is_read_until_asked(tmp_path: Path) -> None:
    tensors = tensors_of(CONFIG, torch.bfloat16)
    folder = write_shards(tmp_path / "hf", CONFIG, tensors)
    broken = folder / "model-00003-of-00003.safetensors"
    broken.write_bytes(b"no safetensors")
    checkpoint = open_checkpoint(folder)
    assert checkpoint.layout == "hf"
    assert checkpoint.config == CONFIG
    assert set(checkpoint) == set(tensors)
    assert len(checkpoint) == len(tensors)
    name = next(iter(tensors))
    assert name in checkpoint
    assert "no such tensor" not in checkpoint
    assert (checkpoint.shape(name), checkpoint.dtype(name)) == (tensors[name].shape, torch.bfloat16)
    assert checkpoint.file(name) == folder / "model-00001-of-00003.safetensors"
    assert torch.equal(checkpoint[name], tensors[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["f32", "bf16", "f16"])
@pytest.mark.parametrize("config", ALL_VARIANTS.values(), ids=ALL_VARIANTS)
def test_round_trip(config: dict[str, Any], dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = tensors_of(config, dtype)
    model = load(write_folder(tmp_path / "hf", config, tensors))
    assert not model.training
    assert all(p.requires_grad and p.dtype == dtype for p in model.parameters())
    save(model, tmp_path / "one", extra={"bos_token_id": 1})
    save(model, tmp_path / "many", max_shard_size=5000)
    assert len(list((tmp_path / "many").glob("model-*.safetensors"))) > 2
    sharded = write_shards(tmp_path / "shards", config, tensors)
    for folder in (tmp_path / "one", tmp_path / "many", sharded):
        assert same(dict(open_checkpoint(folder)), tensors)
        assert same(parameters_of(load(folder)), parameters_of(model))

    for folder in (tmp_path / "one", tmp_path / "many"):
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
        theirs, report = loaded
        assert not any(report.values())
        held, file = (
            {name: t.to(dtype) for name, t in own.items()}  # which of them are kept in float32 is of the release
            for own in (on_disk(in_memory(theirs)), tensors)
        )
        assert same(held, file)


def test_a_tied_head_stays_one_tensor(tmp_path: Path) -> None:
    config = VARIANTS["tied"]
    tensors = tensors_of(config)
    embedding = tensors.pop("model.embed_tokens.weight")
    for name, copies in {
        "embedding": ["model.embed_tokens.weight"],
        "head": ["lm_head.weight"],
        "both": ["model.embed_tokens.weight", "lm_head.weight"],
    }.items():
        folder = write_folder(tmp_path / name, config, {**tensors, **{copy: embedding.clone() for copy in copies}})
        model = load(folder)
        assert model.lm_head.weight is model.embed.weight
        assert torch.equal(model.embed.weight, embedding)
        save(model, tmp_path / f"{name}-again")
        assert "lm_head.weight" not in open_checkpoint(tmp_path / f"{name}-again")


def test_old_buffers_are_dropped(tmp_path: Path) -> None:
    tensors = tensors_of(CONFIG)
    old = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(4) for i in range(2)}
    model = load(write_folder(tmp_path / "old", CONFIG, {**tensors, **old}))
    assert same(parameters_of(model), parameters_of(load(write_folder(tmp_path / "new", CONFIG, tensors))))


MIXED = {
    "torch_dtype": ({"torch_dtype": "bfloat16"}, torch.bfloat16),
    "dtype": ({"dtype": "float32"}, torch.float32),
    "half": ({"torch_dtype": "float16"}, torch.float16),
    "both": ({"dtype": "bfloat16", "torch_dtype": "bfloat16"}, torch.bfloat16),
}


def mixed(kept: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """A Llama's tensors, its matrices in bfloat16, and its norms in another."""
    return {name: t.bfloat16() if t.ndim > 1 else t.to(kept) for name, t in tensors_of(CONFIG).items()}


@pytest.mark.parametrize(("said", "dtype"), MIXED.values(), ids=MIXED)
def test_mixed_dtypes_run_in_the_configs(said: dict[str, str], dtype: torch.dtype, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "mixed", {**CONFIG, **said}, mixed())
    model = load(folder)
    assert {p.dtype for p in model.parameters()} == {dtype}
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert {p.dtype for p in theirs.parameters()} == {dtype}
    assert model(ids).dtype == theirs(ids).logits.dtype == dtype
    save(model, tmp_path / "again")
    assert same(parameters_of(load(tmp_path / "again")), parameters_of(model))


UNSAID = {
    "nothing": ({}, "config.json says no dtype: pass the one to run it in, as dtype=torch.bfloat16"),
    "auto": ({"torch_dtype": "auto"}, "config.json says no dtype: pass the one"),
    "two": ({"dtype": "float32", "torch_dtype": "bfloat16"}, 'says dtype "float32" and torch_dtype "bfloat16": pass'),
    "no-dtype-to-run-in": ({"torch_dtype": "float8_e4m3fn"}, 'config.json says torch_dtype "float8_e4m3fn": pass the one'),
    "no-name": ({"torch_dtype": ["float32"]}, 'config.json says torch_dtype ["float32"]: pass the one'),
}


@pytest.mark.parametrize(("said", "message"), UNSAID.values(), ids=UNSAID)
def test_mixed_dtypes_that_the_config_leaves_open(said: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "mixed", {**CONFIG, **said}, mixed())
    with pytest.raises(MappingError) as error:
        load(folder)
    assert message in str(error.value)
    assert ": mixes dtypes, 'model." in str(error.value)
    for dtype in (torch.float64, torch.bfloat16):
        assert {p.dtype for p in load(folder, dtype=dtype).parameters()} == {dtype}


@pytest.mark.parametrize("said", ["float32", "bfloat16", "auto", None])
def test_one_dtype_of_all_tensors_is_kept_whatever_the_config_says(said: str | None, tmp_path: Path) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        folder = write_folder(tmp_path / str(dtype), {**CONFIG, "torch_dtype": said}, tensors_of(CONFIG, dtype))
        assert {p.dtype for p in load(folder).parameters()} == {dtype}


def test_what_is_kept_in_float32_mixes_nothing(tmp_path: Path) -> None:
    """DeepSeek's routers, in float32 beside bfloat16."""
    tensors = tensors_of(DEEPSEEK, torch.bfloat16)
    tensors |= {name: t.float() for name, t in tensors.items() if ".gate." in name}
    folder = write_folder(tmp_path / "hf", DEEPSEEK, tensors)
    save(load(folder), tmp_path / "again")
    assert same(dict(open_checkpoint(tmp_path / "again")), tensors)


def test_experts_of_several_dtypes(tmp_path: Path) -> None:
    """They make one parameter: no rule casts them by itself, and a dtype to run in settles it."""
    tensors = tensors_of(DEEPSEEK, torch.bfloat16)
    odd = "model.layers.1.mlp.experts.3.up_proj.weight"
    folder = write_folder(tmp_path / "hf", {**DEEPSEEK, "torch_dtype": "bfloat16"}, {**tensors, odd: tensors[odd].float()})
    plain = write_folder(tmp_path / "plain", DEEPSEEK, tensors)
    expected = parameters_of(load(plain))
    found = parameters_of(load(folder))
    assert all(torch.equal(found[name].to(t.dtype), t) for name, t in expected.items())


def test_saving_over_a_checkpoint(tmp_path: Path) -> None:
    model = load(write_shards(tmp_path / "hf", CONFIG, tensors_of(CONFIG)))
    others = ["model.fp16.safetensors", "tokenizer.json"]
    for other in others:
        (tmp_path / "hf" / other).write_text("someone else's")
    before = {name: p.detach().clone() for name, p in parameters_of(model).items()}
    with pytest.raises(MappingError, match=r"hf: is not empty; give another folder, or overwrite=True"):
        save(model, tmp_path / "hf")
    save(model, tmp_path / "hf", overwrite=True)  # its parameters still lie in the files that it replaces
    assert {file.name for file in (tmp_path / "hf").iterdir()} == {"config.json", "model.safetensors", *others}
    assert same(parameters_of(load(tmp_path / "hf")), before)
    assert same(dict(parameters_of(model)), before)


def test_a_failed_save_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "hf", CONFIG, tensors_of(CONFIG))
    model, before = load(folder), {file.name: file.read_bytes() for file in folder.iterdir()}

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("weight_mapping.saving.save_file", full)
    with pytest.raises(OSError, match="no space left"):
        save(model, folder, overwrite=True)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.parametrize("key", ["vocab_size", "rope_theta", "some_new_switch"])
def test_extra_keys_change_nothing(key: str, tmp_path: Path) -> None:
    model = load(write_folder(tmp_path / "hf", CONFIG, tensors_of(CONFIG)))
    with pytest.raises(MappingError, match=f"extra key '{key}'"):
        save(model, tmp_path / "out", extra={key: 1})
    assert not (tmp_path / "out").exists()


def test_gradients_travel_as_the_weights_do(tmp_path: Path) -> None:
    tensors = tensors_of(CONFIG)
    folder = write_folder(tmp_path / "hf", CONFIG, tensors)
    model, ids = load(folder, dtype=torch.float64), torch.tensor([[3, 1, 4, 1, 5]])
    model(ids).logsumexp(-1).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    family, config = parse_config(CONFIG, "hf")
    ours = plan_for(family, config, "hf").backward(gradients)

    theirs = LlamaForCausalLM.from_pretrained(folder, attn_implementation="eager").double()
    with Lens():
        loss = theirs(ids).logits.logsumexp(-1).sum()
    loss.backward()
    assert ours.keys() == dict(theirs.named_parameters()).keys()
    norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()  # some gradients are nought but noise
    for name, p in theirs.named_parameters():
        assert p.grad is not None
        assert (ours[name] - p.grad).norm() < 1e-10 * norm
    # and on into the other layout, where rows of q and k lie otherwise
    in_gguf = plan_for(family, config, "gguf").backward(gradients)
    assert torch.equal(in_gguf["blk.1.attn_q.weight"], side_by_side(ours["model.layers.1.self_attn.q_proj.weight"], 6))


# --- GGUF


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_gguf_is_the_folder(config: dict[str, Any], tmp_path: Path) -> None:
    tensors = tensors_of(config)
    ours = load(write_gguf(tmp_path / "model.gguf", config, tensors))
    from_folder = load(write_folder(tmp_path / "hf", config, tensors))
    assert same(parameters_of(ours), parameters_of(from_folder))
    eps = float(torch.tensor(1e-5, dtype=torch.float32))  # GGUF has no float64
    assert vars(ours)["config"] == replace(vars(from_folder)["config"], norm_eps=eps)


def test_gguf_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    config = {**CONFIG, "head_dim": 4}  # transformers passes key_length over
    write_gguf(tmp_path / "model.gguf", config, tensors_of(config))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    family, parsed = parse_config(config, "hf")
    as_parameters = plan_for(family, parsed, "hf").forward(dict(theirs.named_parameters()))
    ours = load(tmp_path / "model.gguf")
    assert same(parameters_of(ours), as_parameters)
    assert vars(ours)["config"].norm_eps == theirs.config.rms_norm_eps


QWEN = {
    "qwen2": {**CONFIG, "model_type": "qwen2", "head_dim": None},
    "qwen2-tied": {**CONFIG, "model_type": "qwen2", "head_dim": None, "tie_word_embeddings": True},
    "qwen3": {**CONFIG, "model_type": "qwen3", "head_dim": 128},  # transformers passes key_length over
    "qwen3-biased": {**CONFIG, "model_type": "qwen3", "head_dim": 128, "attention_bias": True},
}


@pytest.mark.parametrize("config", QWEN.values(), ids=QWEN)
def test_gguf_of_qwen_leaves_the_rows_of_q_and_k_in_their_order(config: dict[str, Any], tmp_path: Path) -> None:
    config = {key: value for key, value in config.items() if value is not None}
    tensors = tensors_of(config)
    ours = load(write_gguf(tmp_path / "model.gguf", config, tensors, permute=False))
    from_folder = load(write_folder(tmp_path / "hf", config, tensors))
    assert same(parameters_of(ours), parameters_of(from_folder))
    eps = float(torch.tensor(1e-5, dtype=torch.float32))  # GGUF has no float64
    assert vars(ours)["config"] == replace(vars(from_folder)["config"], norm_eps=eps)
    if not config.get("attention_bias"):  # which transformers does not read from the tensors
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
        plan = plan_for(*parse_config(config, "hf"), "hf")
        assert same(parameters_of(ours), plan.forward(dict(theirs.named_parameters())))


def test_rows_left_in_gguf_order_move_the_logits(tmp_path: Path) -> None:
    tensors, ids = tensors_of(CONFIG), torch.tensor([[3, 1, 4, 1, 5]])
    right = load(write_gguf(tmp_path / "right.gguf", CONFIG, tensors))(ids)
    wrong = load(write_gguf(tmp_path / "wrong.gguf", CONFIG, tensors, permute=False))(ids)
    assert torch.equal(right, load(write_folder(tmp_path / "hf", CONFIG, tensors))(ids))
    assert (right - wrong).abs().max() > 0.1 * right.abs().max()


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_1", "Q5_0"])
def test_gguf_is_dequantised_to_float32(kind: str, tmp_path: Path) -> None:
    config = {**CONFIG, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    tensors, kept = tensors_of(config), gguf.GGMLQuantizationType[kind]
    checkpoint = open_checkpoint(write_gguf(tmp_path / "model.gguf", config, tensors, quantise=kept))
    name = "blk.1.ffn_up.weight"
    weight = tensors["model.layers.1.mlp.up_proj.weight"]
    assert (checkpoint.shape(name), checkpoint.dtype(name)) == (weight.shape, torch.float32)
    expected = gguf.dequantize(gguf.quantize(weight.numpy(), kept), kept)
    assert torch.equal(checkpoint[name], torch.from_numpy(expected))
    assert {p.dtype for p in load(tmp_path / "model.gguf").parameters()} == {torch.float32}


def test_gguf_metadata_with_omissions_and_scaling(tmp_path: Path) -> None:
    config = {**CONFIG, "head_dim": 4}
    unsaid = ("vocab_size", "attention.key_length", "attention.value_length", "rope.dimension_count")
    yarn = {"type": "yarn", "factor": 4.0, "original_context_length": 16}
    said: dict[str, Any] = dict.fromkeys([f"llama.{key}" for key in unsaid])
    said |= {f"llama.rope.scaling.{key}": value for key, value in yarn.items()}
    write_gguf(tmp_path / "model.gguf", config, tensors_of(config), metadata=said)
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    expected = parse_config({**config, "rope_scaling": scaling}, "hf")[1]
    ours = vars(load(tmp_path / "model.gguf"))["config"]
    assert replace(ours, norm_eps=1e-5) == expected


def test_frequency_divisors_of_one_are_dropped(tmp_path: Path) -> None:
    ones = {"rope_freqs.weight": torch.ones(4)}
    load(write_gguf(tmp_path / "model.gguf", CONFIG, tensors_of(CONFIG), extra=ones))


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_frequency_divisors_are_applied(factor: float, tmp_path: Path) -> None:
    """As converters make them of Llama 3.1's scaling: what the same model gives from its HF folder, but for rounding."""
    config = {**CONFIG, "hidden_size": 48, "head_dim": 32, "rope_theta": 500000.0, "max_position_embeddings": 131072}
    scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaled = {**config, "rope_scaling": {**scaling, "original_max_position_embeddings": 8192}}
    tensors, rope = tensors_of(config), vars(parse_config(scaled, "hf")[1])["rope"]
    plain = inverse_frequencies(rope.theta, rope.width)
    divisors = plain / rope.scaling.frequencies(rope.theta, rope.width, 1)
    assert len(divisors.unique()) > 2, "some pairs lie between the bands"
    file = write_gguf(tmp_path / "model.gguf", config, tensors, extra={"rope_freqs.weight": divisors})
    ours = load(file, dtype=torch.float64)
    ids = torch.arange(0, 37)[None]
    expected = load(write_folder(tmp_path / "hf", scaled, tensors), dtype=torch.float64)
    unscaled = load(write_folder(tmp_path / "plain", config, tensors), dtype=torch.float64)
    assert torch.allclose(ours(ids), expected(ids), rtol=1e-5)
    assert not torch.allclose(ours(ids), unscaled(ids), rtol=1e-2)


@pytest.mark.parametrize(("divisors", "says"), {(1.0, 1.0): True, (1.0, 8.0): True, (2.0, 7.3): False}.items())
def test_divisors_are_saved_as_what_they_came_from_or_not_at_all(
    divisors: tuple[float, ...], says: bool, tmp_path: Path
) -> None:
    config = {**CONFIG, "head_dim": 4, "rope_theta": 1e10}
    extra = {"rope_freqs.weight": torch.tensor(divisors)}
    model = load(write_gguf(tmp_path / "model.gguf", config, tensors_of(config), extra=extra))
    if not says:
        with pytest.raises(MappingError, match="has no word for divisors of RoPE's frequencies"):
            save(model, tmp_path / "hf")
        return
    save(model, tmp_path / "hf")
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    assert torch.equal(load(tmp_path / "hf")(ids), model(ids))
