"""Names that test ids and reports are made of. Imports nothing that takes long: xdist's controller reads no more."""

import re
from functools import cache

PRECISIONS = ("f64", "f32", "bf16", "f16")


@cache
def kind_of(site_name: str) -> str:
    """A site's name without numbers: `layers.1.attn.probs` -> `attn.probs`, `layers.1` -> `layer`, `encoder.layers.0.attn` ->
    `encoder.attn`.
    """
    kind = re.sub(r"(^|\.)layers(?:\.\d+)+$", r"\1layer", site_name)
    return re.sub(r"(^|\.)layers(?:\.\d+)+\.", r"\1", kind)
