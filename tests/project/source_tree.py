"""The repository's Python files and their syntax trees, for tests that read the source."""

import ast
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def modules(*packages: str) -> dict[str, Path]:
    """Every file of `packages` by its module's dotted name; `__init__` is its folder's."""
    files = [file for package in packages for file in (REPOSITORY / package).rglob("*.py")]
    own = [file for file in sorted(files) if "node_modules" not in file.parts]
    return {_dotted(file.relative_to(REPOSITORY)): file for file in own}


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(file: Path) -> ast.Module:
    """The syntax tree of `file`, parsed once."""
    return ast.parse(file.read_text())
