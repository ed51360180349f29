"""Every field of transformers' GenerationConfig is compared or said not to be; and no file's settings reach a comparison."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from parity_tests.families import FAMILIES
from parity_tests.harness import hf
from parity_tests.harness.case import TRAINED, Case, reads
from parity_tests.harness.greedy import generate_both
from parity_tests.harness.points import config_at
from parity_tests.harness.settings import COMPARED, NOT_COMPARED, SETTINGS, field_of, is_one_of, reason_for
from parity_tests.tiny_checkpoints import CONFIG, tensors_of, write_gguf
from reference_impl.generation_settings import Settings


def test_every_field_is_compared_or_said_not_to_be() -> None:
    missing = [name for name in vars(hf.no_settings()) if not name.startswith("_") and not reason_for(name)]
    assert not missing, f"add {', '.join(missing)} to SETTINGS, or the reason why not to NOT_COMPARED, in harness/settings.py"


def test_nothing_is_both_compared_and_not() -> None:
    patterns = tuple(pattern for patterns in NOT_COMPARED.values() for pattern in patterns.split())
    given = {"eos_token_id", "forced_bos_token_id", "forced_eos_token_id"}  # tokens that the settings are about
    assert not {name for name in COMPARED - given if is_one_of(name, patterns)}


def test_settings_are_named_after_their_field_and_the_reference_has_them() -> None:
    assert {field_of(name) for name in SETTINGS if not name.startswith("as-")} <= COMPARED <= vars(Settings()).keys()
    assert vars(Settings()).keys() - {"pad_token_id"} <= COMPARED, "a setting of the reference that nothing compares"


HUBS: dict[str, Any] = {
    "bad_words_ids": [[7], [11, 12]],
    "begin_suppress_tokens": [1, 2],
    "diversity_penalty": 0.5,
    "do_sample": True,
    "early_stopping": True,
    "encoder_no_repeat_ngram_size": 2,
    "exponential_decay_length_penalty": [1, 1.5],
    "forced_bos_token_id": 5,
    "forced_eos_token_id": 6,
    "length_penalty": 2.0,
    "max_length": 12,
    "min_length": 3,
    "no_repeat_ngram_size": 2,
    "num_beams": 4,
    "num_return_sequences": 2,
    "repetition_penalty": 1.5,
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.8,
    "typical_p": 0.9,
}
"""What configs and generation configs of hubs hold, all at once."""
MORE: dict[str, Any] = {
    "cache_implementation": "static",
    "encoder_repetition_penalty": 1.4,
    "eos_token_id": list(range(40, 100)),
    "guidance_scale": 1.5,
    "min_p": 0.1,
    "prompt_lookup_num_tokens": 3,
    "renormalize_logits": True,
    "suppress_tokens": list(range(40)),  # the forced ones among them, so that 5.24.0 refuses the file
}
"""What a generation_config.json can hold besides."""

GENERATING = [
    (name, variant)
    for name, family in FAMILIES.items()
    for variant in family.variants
    if family.reads(config_at(name, variant)).causal and not family.reads(config_at(name, variant)).memory
]
FIRST = dict(reversed(GENERATING))


@pytest.mark.parametrize("family", FIRST)
def test_no_setting_of_a_file_reaches_greedy_tokens(family: str, tmp_path: Path) -> None:
    made = Case(family, FIRST[family], "f64", FAMILIES[family].backends[0])
    prompt = reads(made).prompt("planted", (1, 6))
    theirs, mine = generate_both(made, prompt, 5)
    assert torch.equal(theirs, mine)
    folder = tmp_path / "planted"
    shutil.copytree(made.source, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(HUBS | {"task_specific_params": {"summarization": HUBS}} | config))
    (folder / "generation_config.json").write_text(json.dumps(HUBS | MORE))
    planted = Case(family, f"{TRAINED}{folder}", "f64", made.backend)
    found, _ = generate_both(planted, prompt, 5)
    assert found.tolist() == theirs.tolist()


def test_no_setting_of_a_gguf_file_reaches_greedy_tokens(tmp_path: Path) -> None:
    """transformers takes no generation config for one, and makes its own of the file's metadata: an end of text, here the
    second token that is written.
    """
    tensors = tensors_of(CONFIG)

    def written(name: str, metadata: dict[str, Any]) -> list[int]:
        file = write_gguf(tmp_path / name, CONFIG, tensors, metadata=metadata)
        case = Case("llama", f"{TRAINED}{file}", "f64", FAMILIES["llama"].backends[0])
        theirs, mine = generate_both(case, reads(case).prompt("planted", (1, 6)), 5)
        assert theirs.tolist() == mine.tolist()
        return theirs[0].tolist()

    free = written("free.gguf", {})
    assert written("ending.gguf", {"tokenizer.ggml.eos_token_id": free[1]}) == free
