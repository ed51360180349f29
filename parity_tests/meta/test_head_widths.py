"""A permutation of two pairs is its own inverse, and one pair has none: a good file of such heads fails nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity_tests.families import FAMILIES
from parity_tests.harness.case import TRAINED, Case
from parity_tests.test_trained import (
    names_of_a_permutation,
)
from parity_tests.test_trained import (
    test_a_permutation_left_out_fails_at_the_first_attention_and_is_explained as explained,
)
from parity_tests.tiny_checkpoints import CONFIG, tensors_of, write_gguf


@pytest.mark.parametrize(("width", "names"), [(2, 0), (4, 2), (6, 1), (8, 1)])
def test_a_good_file_of_any_width_passes(
    width: int, names: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**CONFIG, "head_dim": width, "hidden_size": width * CONFIG["num_attention_heads"]}  # as transformers has it
    file = write_gguf(tmp_path / f"width-{width}.gguf", config, tensors_of(config))
    assert len(names_of_a_permutation(width)) == names
    case = Case("llama", f"{TRAINED}{file}", "f64", FAMILIES["llama"].backends[0])
    if names:
        explained(case, monkeypatch)
    else:
        with pytest.raises(pytest.skip.Exception, match="one pair"):
            explained(case, monkeypatch)
