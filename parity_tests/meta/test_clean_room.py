"""The reference and the mapping stand on their own."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).parents[2]
ALLOWED = {
    "reference_impl": {"torch", "jaxtyping", "reference_impl"},
    "weight_mapping": {"torch", "numpy", "safetensors", "gguf", "reference_impl", "weight_mapping"},
}
FILES = [path for package in ALLOWED for path in sorted((ROOT / package).rglob("*.py"))]


def imported(path: Path) -> set[str]:
    """The top-level packages that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found.add((node.module or "").split(".")[0])
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_only_what_it_may(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    assert imported(path) <= ALLOWED[package] | sys.stdlib_module_names


def test_importing_them_loads_neither_transformers_nor_the_tests() -> None:
    code = (
        "import sys, weight_mapping, reference_impl.models.llama, reference_impl.models.deepseek_v3;"
        "print([name for name in ('transformers', 'parity_tests') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
