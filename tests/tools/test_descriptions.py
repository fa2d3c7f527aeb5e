"""The pages' tables are what /openapi.json says."""

import re
from pathlib import Path

import pytest

from server.daemon.application import all_endpoints
from server.http.openapi import FILE, components
from tools.descriptions import encoded, from_pages

ROOT = Path(__file__).parents[2]


def test_the_file_says_what_the_pages_say() -> None:
    stale = FILE.read_bytes() != encoded(from_pages())
    assert not stale, f"run `python -m tools.descriptions`, which writes {FILE.name}"


def test_links_are_left_out_and_defaults_are_told() -> None:
    fields = from_pages().fields
    assert fields["CompletionRequest"]["stream"] == "See streaming. Default: false."
    assert fields["Usage"]["total_tokens"] == "The sum of both."
    assert not re.search(r"\]\(", str(fields))


@pytest.mark.parametrize("request_type", ["EmbedRequest", "EmbedTokensRequest"])
def test_a_row_for_all_of_teis_endpoints_holds_for_each(request_type: str) -> None:
    fields = from_pages().fields
    assert fields[request_type]["truncate"].startswith("Truncate inputs that are too long")
    assert "truncate" not in fields["DecodeRequest"]


def test_the_page_of_objects_describes_what_is_there_and_once() -> None:
    sections = re.findall(
        r"(?m)^### (.*)\n((?:(?!#).*\n)*)", (ROOT / "docs/objects.md").read_text()
    )
    named = [name for title, _ in sections for name in re.findall(r"`(\w+)`", title)]
    assert len(named) == len(set(named)) > 80
    known = components(each.operation for each in all_endpoints())
    for title, text in sections:
        has = {
            field for name in re.findall(r"`(\w+)`", title) for field in known[name]["properties"]
        }
        rows = re.findall(r"(?m)^\| (`.*?) \|", text)
        described = {field for row in rows for field in re.findall(r"`(\w+)`", row)}
        assert described == has, title
