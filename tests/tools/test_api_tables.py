"""The tables of the pages are printed from the structs, which all have one."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from server.daemon.application import all_endpoints
from server.http.openapi import examples_of, structs_of
from server.schemas.known_options import known_options
from tools.api_tables import PAGES, TABLE, printed

STRUCTS = structs_of(all_endpoints())
ADDRESS = "http://127.0.0.1:8000"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_has_what_the_structs_say(page: Path) -> None:
    text = page.read_text()
    assert text == printed(text), "run `python -m tools.api_tables`, which prints the tables"


def test_every_struct_and_query_is_in_one_table() -> None:
    tables = [
        name
        for page in PAGES
        for _, names, _ in TABLE.findall(page.read_text())
        for name in names.split(", ")
    ]
    assert len(tables) == len(set(tables))
    assert {name for name in tables if " /" not in name} == STRUCTS.keys()
    queries = {f"{e.method} {e.path}" for e in all_endpoints() if e.operation.query}
    assert queries <= set(tables)


def test_the_head_says_which_columns_there_are() -> None:
    page = (
        "<!-- fields of TokenizeRequest -->\n\n| field | meaning |\n| --- | --- |\n| old |\n\nText"
    )
    without, _, text = printed(page).rpartition("\n\n")
    assert text == "Text"
    assert "| `add_special_tokens` | Default: true for a text, false for a chat. |" in without
    with_types = printed(page.replace("| meaning", "| type | default | meaning"))
    assert "\n| `messages` | objects | none | A [chat](#messages-chatmessage): its" in with_types
    assert "old" not in without + with_types


def bodies() -> list[tuple[str, Any]]:
    """The paths and bodies in docs/api.md: of commands, and of what the demo models cannot do."""
    page = PAGES[0].read_text()
    found = re.findall(r"(?s)```json request=(\S+)\n(.*?)```", page)
    for command in re.findall(r"(?s)```sh\n(curl .*?)```", page):
        words = shlex.split(command)
        if "-d" in words:
            address = next(word for word in words if word.startswith(ADDRESS))
            found.append((address.removeprefix(ADDRESS), words[words.index("-d") + 1]))
    return [(path, json.loads(body)) for path, body in found]


@pytest.mark.parametrize(("request_type", "paths"), known_options().endpoints.items())
def test_examples_are_those_of_the_page(request_type: str, paths: list[str]) -> None:
    of_request = [body for path, body in bodies() if path in paths]
    for example in examples_of(STRUCTS[request_type]):
        assert example in of_request
