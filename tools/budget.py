"""Holds Python files, functions and folders to the limits in pyproject.toml, and prints how many
lines each package and its folders have.

A file counts every line, blank ones too. A function counts from its `def` to its last line,
docstring and nested functions included, decorators excluded. A folder counts the Python files
directly in it, except `__init__.py`.
"""

import ast
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath


@dataclass(frozen=True, kw_only=True)
class Budget:
    """`[tool.penstock.budget]` of pyproject.toml: the most lines and files that are allowed."""

    packages: list[str]
    file_lines: int
    # By folder, for all files below it, in place of `file_lines`.
    file_lines_below: dict[str, int] = field(default_factory=dict)
    function_lines: int
    triton_function_lines: int
    folder_files: int

    def lines_of(self, path: PurePath) -> int:
        """The limit on the lines of the file at `path`, relative to the repository."""
        limits = [n for folder, n in self.file_lines_below.items() if path.is_relative_to(folder)]
        return limits[0] if limits else self.file_lines


def read_budget(repository: Path) -> Budget:
    """The limits that the repository's pyproject.toml states."""
    project = tomllib.loads((repository / "pyproject.toml").read_text())
    return Budget(**project["tool"]["penstock"]["budget"])


def read_sources(repository: Path, budget: Budget) -> dict[PurePath, str]:
    """The text of every Python file of the budget's packages, by its path in the repository."""
    files = [file for package in budget.packages for file in (repository / package).rglob("*.py")]
    own = [file for file in sorted(files) if "node_modules" not in file.parts]
    return {file.relative_to(repository): file.read_text() for file in own}


def over_budget(sources: Mapping[PurePath, str], budget: Budget) -> Iterator[str]:
    """One line for each file, function and folder over its limit."""
    for path, text in sources.items():
        if (lines := len(text.splitlines())) > (limit := budget.lines_of(path)):
            yield f"{path}: {lines} lines, at most {limit}"
        yield from _functions_over(path, text, budget)
    for folder, files in _files_by_folder(sources).items():
        if files > budget.folder_files:
            yield f"{folder}/: {files} files, at most {budget.folder_files}"


def _functions_over(path: PurePath, text: str, budget: Budget) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            limit = budget.triton_function_lines if _is_triton(node) else budget.function_lines
            if lines > limit:
                yield f"{path}:{node.lineno}: {node.name} has {lines} lines, at most {limit}"


def _is_triton(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether it is decorated by `@triton.jit` or `@triton.jit(...)`."""
    decorators = [
        each.func if isinstance(each, ast.Call) else each for each in function.decorator_list
    ]
    return "triton.jit" in map(ast.unparse, decorators)


def _files_by_folder(sources: Mapping[PurePath, str]) -> Counter[PurePath]:
    return Counter(path.parent for path in sources if path.name != "__init__.py")


def table(sources: Mapping[PurePath, str]) -> Iterator[str]:
    """A paragraph a package: its lines, and those below each of its folders ("." is the files
    directly in the package)."""
    lines: dict[str, Counter[str]] = {}
    for path, text in sources.items():
        package, *folders = path.parts[:-1]
        folder = folders[0] if folders else "."
        lines.setdefault(package, Counter())[folder] += len(text.splitlines())
    for package, folders in lines.items():
        # No line breaks between a folder and its number.
        counts = [f"{folder}\N{NO-BREAK SPACE}{count:,}" for folder, count in folders.items()]
        row = f"{package:<12}{folders.total():>7,}   {', '.join(counts)}"
        yield textwrap.fill(row, 100, subsequent_indent=" " * 22, break_on_hyphens=False)


def main() -> None:
    """Exit with status 1 if anything is over its limit."""
    repository = Path.cwd()
    budget = read_budget(repository)
    sources = read_sources(repository, budget)
    print(*table(sources), sep="\n")
    if found := list(over_budget(sources, budget)):
        sys.exit("over the budget in pyproject.toml:\n" + "\n".join(found))


if __name__ == "__main__":
    main()
