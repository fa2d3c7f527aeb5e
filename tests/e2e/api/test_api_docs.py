"""The documented examples answer as they say, and docs/api.md's other tables are the code's."""

import json
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.errors import ERRORS
from server.schemas.known_options import known_options
from server.settings.defaults import MAX_PENDING_TOKENS
from server.settings.settings import Limits
from tests.e2e.daemon import Daemon

ROOT = Path(__file__).parents[3]
PAGES = [page for page in ("docs/api.md", "README.md") if (ROOT / page).exists()]
API = (ROOT / "docs/api.md").read_text()

_EXAMPLE = re.compile(r"```sh\n(curl .*?)```\n(?:\s*```(json|http|text)\n(.*?)```)?", re.DOTALL)
_ADDRESS = "http://127.0.0.1:8000"
_LEFT_OUT = re.compile(r",\s*\.\.\.(?=\s*[,\]])")
_STATUS_LINE = re.compile(r"HTTP/1\.1 (\d+) ")


@dataclass(frozen=True)
class Example:
    """A curl command and the answer that a page shows for it: `text` is a body's, without head."""

    page: str
    command: str
    status: int
    headers: list[str]
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.command.split(_ADDRESS)[1].split()[0]}"


def examples(page: str) -> list[Example]:
    """The page's curl commands; without a documented status line 200 is meant."""
    found: list[Example] = []
    for command, kind, answer in _EXAMPLE.findall((ROOT / page).read_text()):
        head, body = answer.split("\n\n", 1) if kind == "http" else ("", answer)
        status = _STATUS_LINE.match(head)
        headers = [line.split(":")[0] for line in head.splitlines()[1:]]
        found.append(Example(page, command, int(status[1]) if status else 200, headers, body))
    return found


def keys(value: Any) -> Any:
    """A JSON value with its keys and the length of its lists of containers, without its values."""
    if isinstance(value, dict):
        return {key: keys(item) for key, item in value.items()}
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return [keys(item) for item in value]
    return None


def stream_keys(text: str) -> set[str]:
    """The kinds of events of a whole stream."""
    *events, last = [line.removeprefix("data: ") for line in text.splitlines() if "data:" in line]
    assert last in ("[DONE]", '{"type":"message_stop"}')
    return {json.dumps(keys(json.loads(event)), sort_keys=True) for event in events}


@pytest.mark.parametrize("example", [e for page in PAGES for e in examples(page)], ids=str)
def test_an_example_answers_as_documented(demo: Daemon, example: Example) -> None:
    command = shlex.split(example.command.replace(_ADDRESS, demo.url))
    answer = subprocess.run(
        [*command, "--include", "--max-time", "60"], capture_output=True, text=True, check=True
    ).stdout.replace("\r\n", "\n")
    head, body = answer.split("\n\n", 1)
    status = _STATUS_LINE.match(head)
    assert status
    assert int(status[1]) == example.status, answer
    assert {name.lower() for name in example.headers} <= set(re.findall(r"(?m)^([\w-]+):", head))
    if "text/event-stream" in head:
        assert stream_keys(body) == stream_keys(example.text)
    else:
        assert keys(json.loads(body)) == keys(json.loads(_LEFT_OUT.sub("", example.text)))


def test_every_command_of_the_pages_is_an_example() -> None:
    """None is missed because it is written in another way."""
    for page in PAGES:
        commands = re.findall(r"(?m)^\W*curl ", (ROOT / page).read_text())
        assert len(commands) == len(examples(page)) > 0, page
        assert all(example.text for example in examples(page)), page


def section(title: str) -> str:
    """The text under a heading of the second level, down to the next heading."""
    return re.split(r"(?m)^##+ ", API.split(f"\n## {title}\n")[1])[0]


def names(text: str) -> list[str]:
    """The words in backquotes."""
    return re.findall(r"`([^`]+)`", text)


def rows(text: str) -> list[list[str]]:
    """The cells of its tables, row by row; the lines under headings left out."""
    return [
        [cell.strip() for cell in line[1:-1].split("|")]
        for line in text.splitlines()
        if line.startswith("|") and set(line) - set("| -")
    ]


def test_the_first_table_holds_every_endpoint(demo: Daemon) -> None:
    described = httpx.get(f"{demo.url}/openapi.json").json()["paths"]
    endpoints = {f"{m.upper()} {path}" for path, methods in described.items() for m in methods}
    first_table = API.split("\n## ")[0].split("| endpoint | |")[1]
    assert set(names(first_table)) == endpoints


def refused_rows() -> list[str]:
    """The table of what is refused: for each group of endpoints, options by neutral values."""
    table = known_options()
    lines = ["| endpoint | field | neutral |", "| --- | --- | --- |"]
    for group in table.groups:
        by_neutral: dict[str, list[str]] = {}
        for name, option in group.refused.items():
            neutral = ", ".join(f"`{json.dumps(value)}`" for value in option.neutral)
            by_neutral.setdefault(neutral, []).append(f"`{name}`")
        endpoints = [path for request in group.requests for path in table.endpoints[request]]
        first = ", ".join(f"`{path}`" for path in endpoints)
        for neutral, fields in by_neutral.items():
            lines.append(f"| {first} | {', '.join(fields)} | {neutral} |".replace("  ", " "))
            first = ""
    return lines


def test_every_option_that_is_not_served_is_named() -> None:
    text = section("Known, not served")
    documented = [line for line in text.splitlines() if line.startswith("|")]
    assert documented == refused_rows(), "\n".join(refused_rows())


def test_the_table_of_errors_is_the_codes() -> None:
    documented = [row[:4] for row in rows((ROOT / "docs/refusals.md").read_text())[1:]]
    assert documented == [
        [f"`{code}`", str(kind.status), f"`{kind.type}`", str(kind.retry_after or "")]
        for code, kind in ERRORS.items()
    ]


def test_the_limits_are_the_defaults() -> None:
    limits = Limits()
    documented = {row[0]: row[1].replace(",", "") for row in rows(section("Limits and admission"))}
    for name, value in {
        "size of a body": f"{limits.max_body_size >> 20} MiB",
        "size of a file that is uploaded": f"{limits.max_file_size >> 20} MiB",
        "files and responses of one API key": f"{limits.max_stored_size >> 30} GiB",
        "prompts, inputs": limits.max_inputs,
        "documents": limits.max_documents,
        "`n`": limits.max_n,
        "lines of such a file": limits.max_file_lines,
        "sequences in flight, for each model": limits.max_sequences,
        "tokens in flight, for each model": MAX_PENDING_TOKENS,
        "[expected wait](#the-expected-wait) until a request begins, for each model": (
            f"{limits.max_queue_seconds:g} s"
        ),
    }.items():
        assert documented[name] == str(value), name


def test_every_metric_is_named(demo: Daemon) -> None:
    page = httpx.get(f"{demo.url}/metrics").text
    kinds = dict(re.findall(r"(?m)^# TYPE (\S+) (\w+)$", page))
    documented = {names(row[0])[0]: row[1] for row in rows(section("Metrics"))[1:]}
    assert documented == {n: kind for n, kind in kinds.items() if not n.endswith("_created")}
