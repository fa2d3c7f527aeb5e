"""Reading the pages of docs: sections, and the cells of their tables."""

import re


def section(page: str, title: str) -> str:
    """The text under a heading of the second level, down to the next heading."""
    return re.split(r"(?m)^##+ ", page.split(f"\n## {title}\n")[1])[0]


def cells(row: str) -> list[str]:
    """Those of a table's line."""
    return [cell.strip() for cell in row[1:-1].split("|")]


def names(text: str) -> list[str]:
    """What stands in backquotes."""
    return re.findall(r"`([^`]+)`", text)
