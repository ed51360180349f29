"""Checkpoints of any layout to the parameters of the reference and back, bit for bit. Needs no transformers."""

from weight_mapping.checkpoint import open_checkpoint
from weight_mapping.errors import MappingError
from weight_mapping.loading import load
from weight_mapping.saving import save

__all__ = ["MappingError", "load", "open_checkpoint", "save"]
