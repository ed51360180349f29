"""Every field of transformers' configs is varied by some fixture or known to change nothing, so that a new one is noticed."""

import pytest

from parity_tests.families import FAMILIES
from parity_tests.harness import hf
from parity_tests.harness.case import Case, batches_of
from parity_tests.harness.compare import under_lens
from parity_tests.harness.flags import REFUSED, fields_of
from parity_tests.harness.sides import mine
from weight_mapping.config import parse_config
from weight_mapping.errors import MappingError
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


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("key", REFUSED)
def test_what_is_not_varied_because_the_mapping_refuses_it_is_refused(name: str, key: str) -> None:
    config = next(iter(FAMILIES[name].variants.values()))
    with pytest.raises(MappingError, match=key):
        parse_config({**config, key: REFUSED[key]}, "hf")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_feed_forward_in_pieces_gives_the_same(family: str) -> None:
    """Of the families that read `chunk_size_feed_forward`, with one token a piece."""
    record = FAMILIES[family]
    case = Case(family, next(iter(record.variants)), "f64", record.backends[0])
    if not hf.has_class(case.hf_class):
        pytest.skip(f"absent: transformers {hf.VERSION} has no {case.hf_class}")
    model = hf.build(case.hf_class, case.source, "f64", case.backend)
    readers = [module for module in model.modules() if hasattr(module, "chunk_size_feed_forward")]
    if not readers:
        pytest.skip("nothing reads it")
    for module in readers:
        module.chunk_size_feed_forward = 1
    for batch in batches_of(case):
        theirs = hf.run(model, "f64", batch.inputs).logits
        assert under_lens(batch.kept(theirs), batch.kept(mine(case, batch.inputs))).verdict == "same"
