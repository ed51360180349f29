"""The reference's shape annotations, checked at run time."""

from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping


@contextmanager
def unchecked() -> Iterator[None]:
    """Switch the checking off, for loops over shapes that are checked elsewhere: it costs more than tiny models do."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
