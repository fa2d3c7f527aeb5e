"""Links between the pages, and from them to files of the repository, lead somewhere."""

import re
from pathlib import Path

import pytest

from tests.project.source_tree import REPOSITORY

PAGES = sorted([REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")])


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
