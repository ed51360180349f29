"""The jobs by name, and what it takes to run them. What `make` calls needs the standard library alone."""

from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
