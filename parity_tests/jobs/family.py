"""The four files of a new family, laid out after those of the one that is most like it."""

from __future__ import annotations

import ast
import keyword
import re
from pathlib import Path

from parity_tests.jobs import CHECKOUT
from parity_tests.jobs.environments import SetupError

PLACES = ("reference_impl/models", "weight_mapping/families", "fixtures", "parity_tests/families")
"""Where a family has its files, in the order in which they are written."""


def camel(name: str) -> str:
    """The name as transformers' classes begin with it: deepseek_v3 as DeepseekV3."""
    return "".join(part.capitalize() for part in name.split("_"))


def existing(root: Path) -> list[str]:
    """The families that have all four files."""
    found = [{path.stem for path in (root / place).glob("*.py")} for place in PLACES]
    return sorted(set.intersection(*found) - {"__init__"})


def renamed(text: str, old: str, new: str) -> str:
    """One family's file as another's: its name in snake case and in that of classes, wherever it is a word or part of one."""
    text = re.sub(rf"(?<![a-z0-9]){old}(?![a-z0-9])", new, text)
    return re.sub(rf"{camel(old)}(?![a-z])", camel(new), text)


def without_published(text: str) -> str:
    """Fixtures without the configs that the makers of the other family published."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "published.variants" and len(node.args) == 3:
            before, files = node.args[1:]
            kept, line = lines[(before.end_lineno or 0) - 1][: before.end_col_offset], (files.end_lineno or 0) - 1
            lines[(before.end_lineno or 0) - 1 : line + 1] = [kept + lines[line][files.end_col_offset :]]
    return "".join(lines)


def lay_out(name: str, like: str, root: Path = CHECKOUT) -> list[Path]:
    """Write them; they run at once where transformers has a family of this name whose config reads the same. Errors: SetupError
    when a name is none, or taken, or there is nothing of that name to be like.
    """
    families = existing(root)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise SetupError(f"NAME={name} is no model_type such as qwen3_moe: small letters, digits and underscores.")
    if like not in families:
        raise SetupError(f"LIKE={like} is no family; name one of {', '.join(families)}.")
    paths = {root / place / f"{like}.py": root / place / f"{name}.py" for place in PLACES}
    for path in paths.values():
        if path.exists():
            raise SetupError(f"{path.relative_to(root)} is there already; nothing was written.")
    for source, target in paths.items():
        target.write_text(renamed(without_published(source.read_text()), like, name))
    return list(paths.values())
