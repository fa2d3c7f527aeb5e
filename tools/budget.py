"""Holds the code of the daemon's packages and every function to the limits in pyproject.toml.

A line of code has a token on it that is no comment and no part of a docstring, which is any string
that stands as a statement. A function counts every line from its `def` to its last, docstring and
nested functions included, decorators excluded.
"""

import ast
import io
import sys
import textwrap
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """`[tool.penstock.budget]` of pyproject.toml.

    `code_lines` bounds the sum over `packages`, in whose functions and in those of `others` no one
    is longer than `function_lines`, or `triton_function_lines` for a Triton kernel.
    """

    packages: list[str]
    code_lines: int
    others: list[str]
    function_lines: int
    triton_function_lines: int


def read_budget(repository: Path) -> Budget:
    """The limits that the repository's pyproject.toml states."""
    project = tomllib.loads((repository / "pyproject.toml").read_text())
    return Budget(**project["tool"]["penstock"]["budget"])


def read_sources(repository: Path, budget: Budget) -> dict[PurePath, str]:
    """The text of every Python file of the budget's packages, by its path in the repository."""
    folders = [repository / name for name in (*budget.packages, *budget.others)]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    own = [file for file in sorted(files) if "node_modules" not in file.parts]
    return {file.relative_to(repository): file.read_text() for file in own}


def code_lines(text: str) -> int:
    """The lines of code of a file's `text`."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            case _:
                pass
    return len(lines)


def over_budget(sources: Mapping[PurePath, str], budget: Budget) -> Iterator[str]:
    """One line for the sum of code, and one for each function, over its limit."""
    owned = [text for path, text in sources.items() if path.parts[0] in budget.packages]
    if (total := sum(map(code_lines, owned))) > (most := budget.code_lines):
        yield f"{', '.join(budget.packages)}: {total:,} lines of code, at most {most:,}"
    for path, text in sources.items():
        yield from _functions_over(path, text, budget)


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


def table(sources: Mapping[PurePath, str]) -> Iterator[str]:
    """A paragraph a package: its lines and lines of code, and its folders' lines of code ("." is
    the files directly in the package)."""
    lines: Counter[str] = Counter()
    code: dict[str, Counter[str]] = {}
    for path, text in sources.items():
        package, *folders = path.parts[:-1]
        lines[package] += len(text.splitlines())
        code.setdefault(package, Counter())[folders[0] if folders else "."] += code_lines(text)
    for package, folders in code.items():
        # No line breaks between a folder and its number.
        counts = [f"{folder}\N{NO-BREAK SPACE}{count:,}" for folder, count in folders.items()]
        row = f"{package:<12}{lines[package]:>7,}{folders.total():>7,}   {', '.join(counts)}"
        yield textwrap.fill(row, 100, subsequent_indent=" " * 29, break_on_hyphens=False)


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
