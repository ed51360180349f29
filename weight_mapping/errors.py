"""The errors of this package."""


class MappingError(ValueError):
    """A checkpoint, config or table that cannot be mapped. One sentence: the file, tensor or key, and what to do."""

    def __init__(self, message: str, *, tensor: str | None = None):
        super().__init__(message)
        self.tensor = tensor
        """The tensor it is about, for whoever knows the file that holds it."""


class MissingTensorError(MappingError, KeyError):
    """A name that a checkpoint does not hold; a KeyError too, as `Mapping` asks."""

    __str__ = Exception.__str__  # a KeyError would print its message in quotes
