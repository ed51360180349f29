"""Findings that no comparison of a fixture shows, for transformers refuses or breaks there: each must still reproduce."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from parity_tests.harness import hf
from parity_tests.harness.record import Known
from parity_tests.tiny_checkpoints import CONFIG, tensors_of, write_gguf

IDS = torch.tensor([[1, 2, 3, 4]])
WIDTHS = {
    "hidden_size": 20,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 50,
}


def raises(error: str, run: Callable[[], Any]) -> bool:
    """Whether this breaks, and with this error; any other is none of what is known."""
    try:
        with torch.no_grad():
            run()
    except Exception as found:
        if type(found).__name__ != error:
            raise
        return True
    return False


def small(family: str, **changes: Any) -> Any:
    """A causal model with weights of its own choice."""
    config = getattr(transformers, f"{family}Config")(**(WIDTHS | changes))
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def grouped_in_half_precision(tmp_path: Path) -> bool:
    model = small("Mixtral", head_dim=8, num_local_experts=4, experts_implementation="grouped_mm")
    assert model(IDS).logits.shape == (1, 4, 50), "it is not broken in float32"
    return raises("RuntimeError", lambda: model.bfloat16()(IDS))


def deepseek_v2_as_it_is(tmp_path: Path) -> bool:
    """All but the sizes is left as the config has it."""
    few = {"n_routed_experts": 4, "moe_intermediate_size": 8, "first_k_dense_replace": 0}
    assert not raises("TypeError", lambda: small("DeepseekV2", **few, num_experts_per_tok=2)(IDS))
    return raises("TypeError", lambda: small("DeepseekV2", **few)(IDS))


def width_no_multiple_of_heads(tmp_path: Path) -> bool:
    error = "StrictDataclassClassValidationError"
    return raises(error, lambda: small("Llama", hidden_size=30, num_attention_heads=4, head_dim=8)(IDS))


def jitter_in_place(tmp_path: Path) -> bool:
    model = small("Mixtral", head_dim=8, num_local_experts=4, router_jitter_noise=0.25)
    experts = next(module for module in model.modules() if type(module).__name__ == "MixtralSparseMoeBlock")
    given = torch.ones(1, 3, 20)
    with torch.no_grad():
        experts.train()(given)
    return not torch.equal(given, torch.ones(1, 3, 20))


def qwen3_gguf(tmp_path: Path) -> bool:
    config = {**CONFIG, "model_type": "qwen3", "head_dim": 6}
    write_gguf(tmp_path / "model.gguf", config, tensors_of(config), permute=False)
    load = transformers.AutoModelForCausalLM.from_pretrained
    return raises("RuntimeError", lambda: load(tmp_path, gguf_file="model.gguf"))


def known(name: str, since: str = "0") -> Known:
    return Known(name=name, sites=(), link="found here: see Findings in the README", since=since)


FINDINGS: dict[Callable[..., bool], Known] = {
    grouped_in_half_precision: known("grouped_mm raises in half precision when a width is no multiple of 8", since="5.0.0"),
    deepseek_v2_as_it_is: known("DeepseekV2Config() as it is cannot run a forward"),
    width_no_multiple_of_heads: known("a hidden_size that is no multiple of the heads is refused with head_dim", since="5.0.0"),
    jitter_in_place: known("router jitter multiplies the caller's tensor in place"),
    qwen3_gguf: known("a Qwen3 GGUF loads only with a head width of 128: attention.key_length is passed over"),
}


@pytest.mark.parametrize("reproduce", FINDINGS, ids=lambda reproduce: reproduce.__name__)
def test_a_finding_reproduces(reproduce: Callable[..., bool], tmp_path: Path) -> None:
    """Strict, as known differences are: once upstream mends it, the range of releases and the README are to be closed."""
    finding = FINDINGS[reproduce]
    expected = finding.in_release(hf.VERSION)
    if reproduce(tmp_path) != expected:
        pytest.fail(f"transformers {hf.VERSION}: {finding.name}: {'no longer' if expected else 'not known of this release'}")
