"""README.md and docs/ name files, folders and modules that exist, and no link is broken."""

import re
from pathlib import Path

import pytest

from tests.project.source_tree import REPOSITORY

PACKAGES = ("server", "engine_core", "workers", "benchmarks", "tools", "tests", "examples")
PAGES = sorted([REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")])


def paths_in(text: str) -> set[str]:
    """Python files anywhere in `text`, whole paths or the ends of them."""
    return set(re.findall(r"(?<![\w/.*-])[\w/]+\.py\b", text))


def folders_in(text: str) -> set[str]:
    """Folders that stand in backticks with a slash behind them."""
    return set(re.findall(r"`([\w/]+/)`", text))


def modules_in(text: str) -> set[str]:
    """Dotted names below one of the packages that stand in backticks, arguments left out."""
    return set(re.findall(rf"`(?:python -m )?((?:{'|'.join(PACKAGES)})(?:\.\w+)+)`", text))


@pytest.fixture(scope="module")
def tree() -> set[str]:
    """Every file and folder (with a slash behind it) of the packages, with a slash before it."""
    entries = [entry for package in PACKAGES for entry in (REPOSITORY / package).rglob("*")]
    entries += [REPOSITORY / package for package in PACKAGES]
    return {
        f"/{entry.relative_to(REPOSITORY)}{'/' * entry.is_dir()}"
        for entry in entries
        if "__pycache__" not in entry.parts
    }


def is_module(name: str) -> bool:
    path = REPOSITORY.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_modules_that_a_page_names_exist(page: Path, tree: set[str]) -> None:
    text = page.read_text()
    named = paths_in(text) | (folders_in(text) if page.name == "architecture.md" else set())
    assert {path for path in named if not any(each.endswith(f"/{path}") for each in tree)} == set()
    # `server.errors.ErrorKind` is a module and a name in it.
    modules = modules_in(text)
    assert {m for m in modules if not is_module(m) and not is_module(m.rpartition(".")[0])} == set()


def test_paths_in_a_page_are_found() -> None:
    text = (
        "core `a/b.py`, c.py\n(`server.errors` and `folder/`) tests/use_*.py `server.crt` e/ .pyc"
    )
    assert paths_in(text) == {"a/b.py", "c.py"}
    assert folders_in(text) == {"folder/"}
    assert modules_in(text) == {"server.errors", "server.crt"}


def test_the_page_on_adding_a_model_shows_a_reader_and_a_row_as_they_are() -> None:
    page = (REPOSITORY / "docs" / "adding-a-model.md").read_text()
    folder = REPOSITORY / "workers/contract/checkpoint"
    (shown,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert f"\n\n\n{shown}\n" in (folder / "encoders.py").read_text()
    (rows,) = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)
    table = (folder / "architectures.py").read_text()
    assert all(row[1:] in table for row in rows.splitlines())


def anchors_of(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^```.*?^```$", "", text))
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings}


def is_broken(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return not target.exists() or (anchor != "" and anchor not in anchors_of(target.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|mailto:)([^) ]+)\)", page.read_text())
    assert [link for link in links if is_broken(page, link)] == []


def test_broken_links_are_found() -> None:
    page = REPOSITORY / "README.md"
    links = ["docs/api.md", "docs/api.md#metrics", "nowhere.md", "docs/api.md#nowhere"]
    assert [is_broken(page, link) for link in links] == [False, False, True, True]
