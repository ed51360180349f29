"""Every field of transformers' configs is varied by some fixture or known to change nothing, so that a new one is noticed."""

import pytest

from parity_tests.families import FAMILIES
from parity_tests.harness import hf
from parity_tests.harness.flags import fields_of
from weight_mapping.rope import SCALINGS


@pytest.mark.parametrize("name", FAMILIES)
def test_every_field_is_varied_or_inert(name: str) -> None:
    try:
        fields = fields_of(FAMILIES[name])
    except hf.Absent as reason:
        pytest.skip(f"absent: {reason}")
    missing = [field.name for field in fields if not field.covered]
    assert not missing, (
        f"no variant of {name} varies {', '.join(missing)}: add one to fixtures/{name}.py, "
        f"or the reason why it changes nothing to `inert` in parity_tests/families/{name}.py"
    )


def test_every_kind_of_rope_is_known() -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    here = {*SCALINGS, "default", "proportional"}  # Gemma's, of which the seeds say nothing
    assert set(ROPE_INIT_FUNCTIONS) <= here, f"transformers scales RoPE in new ways: {set(ROPE_INIT_FUNCTIONS) - here}"
