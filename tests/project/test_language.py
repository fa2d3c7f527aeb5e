"""Words that were given up stay away: retired_words.toml lists them."""

import ast
import re
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from tests.project.source_tree import REPOSITORY, modules, tree_of

PACKAGES = ("server", "engine_core", "workers", "benchmarks", "tools")
RETIRED: dict[str, list[str]] = tomllib.loads(
    (Path(__file__).with_name("retired_words.toml")).read_text()
)


def names(tree: ast.AST) -> Iterator[str]:
    """Classes, functions, parameters and fields that `tree` defines; members also with their class
    before them."""
    todo: list[tuple[ast.AST, str]] = [(tree, "")]
    while todo:
        parent, owner = todo.pop()
        in_class = isinstance(parent, ast.ClassDef)
        for node in ast.iter_child_nodes(parent):
            for name in _defined(node, in_class=in_class):
                yield name
                if owner:
                    yield f"{owner}.{name}"
            todo.append((node, node.name if isinstance(node, ast.ClassDef) else owner))


def _defined(node: ast.AST, *, in_class: bool) -> Iterator[str]:
    """What `node` itself defines. A variable counts in a class only, as a field."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.arg(arg=name):
            yield name
        case ast.Attribute(attr=name, ctx=ast.Store()):
            yield name
        case ast.AnnAssign(target=ast.Name(id=name)) if in_class:
            yield name
        case ast.Assign(targets=targets) if in_class:
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def words(identifier: str) -> set[str]:
    """The words of `_snake_case`, `CamelCase` and `CAPITALS`."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)}


def retired_names(found: Collection[str]) -> set[str]:
    """Those of the names `found` that are retired, or have a retired word in them."""
    banned = set(RETIRED["identifier_words"])
    return {name for name in found if name in RETIRED["identifiers"] or words(name) & banned}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_retired_identifier_is_defined(package: str) -> None:
    for module, file in modules(package).items():
        defined = {module, *module.split("."), *names(tree_of(file))}
        assert retired_names(defined) == set(), f"{file}: see tests/project/retired_words.toml"


def phrase_pattern(phrases: Collection[str]) -> re.Pattern[str]:
    """Matches each phrase, over the ends of lines of text and comments too."""
    return re.compile("|".join(map(_one_phrase, phrases)))


def _one_phrase(phrase: str) -> str:
    text = r"[\s#]+".join(map(re.escape, phrase.split()))
    return rf"\b{text}\b" if phrase[0].isupper() else rf"(?i:\b{text}\b)"


def found_phrases(text: str, pattern: re.Pattern[str]) -> list[str]:
    """Each phrase in `text` with its line number."""
    matches = pattern.finditer(text)
    return [f"{text.count(chr(10), 0, each.start()) + 1}: {each.group()}" for each in matches]


def test_no_retired_phrase_is_written() -> None:
    pattern = phrase_pattern(RETIRED["phrases"])
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
    found = {
        f"{file.relative_to(REPOSITORY)}:{phrase}"
        for file in (*pages, *modules(*PACKAGES).values())
        for phrase in found_phrases(file.read_text(), pattern)
    }
    assert found == set()


SOURCE = """
class Loop(Base):
    told_by: int
    limit = 3

    def turn(self, wanted_rows, *, place=0):
        local = 1
        self.news = local

    @property
    async def _TOLD(self): ...

CONSTANT = 1
"""


def test_definitions_are_found() -> None:
    found = set(names(ast.parse(SOURCE)))
    members = {"told_by", "limit", "turn", "self", "wanted_rows", "place", "news", "_TOLD"}
    assert found == {"Loop", *members, *(f"Loop.{member}" for member in members)}


def test_retired_words_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RETIRED, "identifiers", ["Loop.turn", "house"])
    monkeypatch.setitem(RETIRED, "identifier_words", ["told"])
    assert retired_names({"turn", "Loop.turn", "house", "full_house", "toldest"}) == {
        "Loop.turn",
        "house",
    }
    assert retired_names({"_TOLD", "toldRows", "rows_told"}) == {"_TOLD", "toldRows", "rows_told"}


def test_phrases_are_found() -> None:
    pattern = phrase_pattern(["in the house", "Of what"])
    text = "# In the\n    # house, of what\nOf what is in the houses"
    assert found_phrases(text, pattern) == ["1: In the\n    # house", "3: Of what"]
