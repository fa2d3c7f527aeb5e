"""Chats with tools in files: calls as the API answers them."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.agents.scripts import SCRIPTS, question
from tests.e2e.batch_files.batch_command import finished, read_lines, request, write_lines
from tests.e2e.daemon import Daemon, running
from tests.e2e.scripted_model import write_scripted_model
from tests.e2e.stored.generator import client_of, ended
from tests.patience import PATIENCE

CHAT = "/v1/chat/completions"
NAME = "get_weather"
FUNCTION = {"name": NAME, "parameters": {"type": "object"}}
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": question()}]}
FIELDS: dict[str, dict[str, Any]] = {
    "auto": {"tools": [{"type": "function", "function": FUNCTION}]},
    "required": {
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": "required",
    },
    "older": {"functions": [FUNCTION]},
}
LINES = [request(name, CHAT, **BODY, **fields) for name, fields in FIELDS.items()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("scripted"), SCRIPTS)


@pytest.fixture(scope="module")
def daemon(folder: Path, tmp_path_factory: pytest.TempPathFactory):
    state = str(tmp_path_factory.mktemp("state"))
    with running(str(folder), "--threads", "1", "--state-dir", state) as daemon:
        yield daemon


def said_in(body: dict[str, Any]) -> dict[str, Any]:
    """What an answer says, but for the ids of calls."""
    (choice,) = body["choices"]
    message = choice["message"]
    for each in message.get("tool_calls", ()):
        assert each.pop("id").startswith("call_")
    return {"message": message, "finish_reason": choice["finish_reason"]}


@pytest.fixture(scope="module")
def expected(daemon: Daemon) -> dict[str, dict[str, Any]]:
    answers = {
        name: httpx.post(f"{daemon.url}{CHAT}", json=BODY | fields, timeout=PATIENCE).json()
        for name, fields in FIELDS.items()
    }
    found = {name: said_in(body) for name, body in answers.items()}
    written = json.loads(SCRIPTS["call-and-answer"][0].split("\n")[1])
    for name, each in found.items():
        is_older = name == "older"
        assert each["finish_reason"] == ("function_call" if is_older else "tool_calls")
        message = each["message"]
        (called,) = (
            [message["function_call"]]
            if is_older
            else [tool["function"] for tool in message["tool_calls"]]
        )
        assert called["name"] == NAME
        assert json.loads(called["arguments"]) == written["arguments"]
    return found


def test_calls_in_a_batch_of_the_daemons(daemon: Daemon, expected: dict[str, Any]) -> None:
    client = client_of(daemon)
    text = "".join(f"{json.dumps(line)}\n" for line in LINES)
    file = client.files.create(file=("in.jsonl", text.encode()), purpose="batch")
    created = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    batch = ended(client, created.id)
    assert batch.status == "completed"
    lines = client.files.content(batch.output_file_id or "").text.splitlines()
    assert answers(list(map(json.loads, lines))) == expected


@pytest.mark.parametrize("own", [False, True], ids=["of a daemon", "of an own engine"])
def test_calls_in_a_file(
    daemon: Daemon, folder: Path, tmp_path: Path, expected: dict[str, Any], own: bool
) -> None:
    source, output = write_lines(tmp_path / "in.jsonl", *LINES), tmp_path / "out.jsonl"
    flags = [str(folder), "--threads", "1"] if own else ["--url", daemon.url]
    code, _, complained = finished(source, output, *flags)
    assert code == 0, complained
    assert answers(read_lines(output)) == expected


def answers(lines: list[dict[str, Any]]) -> dict[str, Any]:
    return {line["custom_id"]: said_in(line["response"]["body"]) for line in lines}
