"""The errors of this package: MappingError, and two kinds of it."""


class MappingError(ValueError):
    """A checkpoint, config or table that cannot be mapped. One sentence: the file, tensor or key, and what to do."""


class MissingTensorError(MappingError, KeyError):
    """A name that a checkpoint does not hold; a KeyError too, as `Mapping` asks."""

    __str__ = Exception.__str__  # a KeyError would print its message in quotes


class TensorError(MappingError):
    """A tensor that a plan cannot take. It is known by name; whoever knows its file adds that."""

    def __init__(self, tensor: str, what: str):
        super().__init__(what)
        self.tensor = tensor


def shown(value: object, longest: int = 80) -> str:
    """A value of the file's as an error shows it: on one line, and cut in the middle where it is long."""
    text = repr(value)
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[-half:]}"
