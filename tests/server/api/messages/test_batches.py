"""`/v1/messages/batches` in front of a state folder, whose batches the tests end themselves."""

import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from server.batches.answering import Answer
from server.batches.file_job import LineError, output_line
from server.batches.state.stored_batches import EXPIRED
from tests.server.batches.state.opened import prepared
from tests.server.batches.state.test_endpoints import YOURS, served

PATH = "/v1/messages/batches"
PARAMS = {"max_tokens": 3, "messages": [{"role": "user", "content": "a"}]}
GOOD = Answer(200, "req-1", b'{"type":"message"}')
LATE = LineError(EXPIRED, "late")
BAD = Answer(400, "req-2", b'{"type":"error"}')


@pytest_asyncio.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with served(prepared(tmp_path), "mine", "yours") as http:
        yield http


async def made(http: httpx.AsyncClient, *ids: str) -> dict[str, Any]:
    requests = [{"custom_id": each, "params": PARAMS} for each in ids or ("a", "b")]
    answer = await http.post(PATH, json={"requests": requests})
    assert answer.status_code == 200, answer.text
    return answer.json()


def end(folder: Path, batch: str, status: str, **outcomes: Answer | LineError) -> None:
    """End a batch as the batch process would, with these outcomes by the ids of requests."""
    files = {"output": [], "error": []}
    for name, outcome in outcomes.items():
        line = output_line("batch_req_1", name, outcome) + b"\n"
        files["output" if outcome.is_good else "error"].append(line)
    for name, lines in files.items():
        (folder / "files" / f"file-{name}").write_bytes(b"".join(lines))
    good, bad = (sum(isinstance(each, Answer) and each.is_good == is_good
                     for each in outcomes.values()) for is_good in (True, False))  # fmt: skip
    with sqlite3.connect(folder / "penstock.db") as database:
        database.execute(
            f"UPDATE batches SET status = ?, {status}_at = 7, completed = ?, failed = ?, "
            "output_file_id = 'file-output', error_file_id = 'file-error', "
            """errors = '[{"code": "storage_full", "message": "no room"}]' WHERE id = ?""",
            (status, good, bad, batch),
        )
    database.close()


async def results(http: httpx.AsyncClient, batch: str) -> dict[str, Any]:
    answer = await http.get(f"{PATH}/{batch}/results")
    assert answer.status_code == 200, answer.text
    lines = [json.loads(line) for line in answer.text.splitlines()]
    found = {line["custom_id"]: line["result"] for line in lines}
    assert len(found) == len(lines)
    return found


async def test_a_batch_is_a_file_of_lines(http: httpx.AsyncClient) -> None:
    batch = await made(http)
    assert batch["processing_status"] == "in_progress"
    assert batch["request_counts"] == {
        "processing": 2, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0,
    }  # fmt: skip
    assert (batch["results_url"], batch["ended_at"]) == (None, None)
    assert (await http.get(f"{PATH}/{batch['id']}")).json() == batch
    (file,) = (await http.get("/v1/files")).json()["data"]
    content = (await http.get(f"/v1/files/{file['id']}/content")).text
    assert [json.loads(line) for line in content.splitlines()] == [
        {"custom_id": name, "method": "POST", "url": "/v1/messages", "body": PARAMS}
        for name in "ab"
    ]
    for path in ("/results", ""):
        method = "GET" if path else "DELETE"
        early = await http.request(method, f"{PATH}/{batch['id']}{path}")
        assert (early.status_code, early.json()["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("status", "outcomes", "counts", "types"),
    [
        ("completed", {"a": GOOD, "b": BAD}, (1, 1, 0, 0), "succeeded errored"),
        ("cancelled", {"a": GOOD}, (1, 0, 1, 0), "succeeded canceled"),
        ("expired", {"a": GOOD, "b": LATE}, (1, 0, 0, 1), "succeeded expired"),
        ("failed", {}, (0, 2, 0, 0), "errored errored"),
    ],
)  # fmt: skip
async def test_what_has_ended(
    http: httpx.AsyncClient, tmp_path: Path, status, outcomes, counts, types
) -> None:
    batch = (await made(http))["id"]
    end(tmp_path, batch, status, **outcomes)
    shown = (await http.get(f"{PATH}/{batch}")).json()
    assert shown["processing_status"] == "ended"
    assert (shown["results_url"], shown["ended_at"]) == (
        f"{PATH}/{batch}/results", "1970-01-01T00:00:07Z",
    )  # fmt: skip
    assert tuple(shown["request_counts"].values()) == (0, *counts)
    found = await results(http, batch)
    assert " ".join(found[name]["type"] for name in "ab") == types
    if found["a"]["type"] == "succeeded":
        assert found["a"]["message"] == {"type": "message"}
    if found["b"]["type"] == "errored":
        assert found["b"]["error"]["type"] == "error"
    gone = await http.delete(f"{PATH}/{batch}")
    assert gone.json() == {"id": batch, "type": "message_batch_deleted"}
    assert (await http.get(f"{PATH}/{batch}")).status_code == 404
    assert (await http.get("/v1/files")).json()["data"] == []


async def test_pages(http: httpx.AsyncClient) -> None:
    ids = [(await made(http, "a"))["id"] for _ in range(3)]
    whole = (await http.get(PATH)).json()
    listed = [each["id"] for each in whole["data"]]
    assert sorted(listed) == sorted(ids)
    assert (whole["first_id"], whole["last_id"], whole["has_more"]) == (
        listed[0], listed[-1], False,
    )  # fmt: skip
    for query, expected, more in (
        ({"limit": 2}, listed[:2], True),
        ({"after_id": listed[1]}, listed[2:], False),
        ({"before_id": listed[2]}, listed[:2], False),
        ({"before_id": listed[2], "limit": 1}, listed[1:2], True),
    ):
        page = (await http.get(PATH, params=query)).json()
        assert ([each["id"] for each in page["data"]], page["has_more"]) == (expected, more)
        assert (page["first_id"], page["last_id"]) == (expected[0], expected[-1])
    for query, field in (
        ({"after_id": "x"}, "after_id"),
        ({"before_id": "x"}, "before_id"),
        ({"before_id": ""}, "before_id"),
        ({"after_id": listed[0], "before_id": listed[2]}, "before_id"),
    ):
        refused = await http.get(PATH, params=query)
        assert refused.status_code == 400
        assert refused.json()["error"]["details"]["param"] == field


async def test_a_batch_is_cancelled(http: httpx.AsyncClient) -> None:
    batch = (await made(http))["id"]
    shown = (await http.post(f"{PATH}/{batch}/cancel")).json()
    assert shown["processing_status"] == "canceling"
    assert shown["cancel_initiated_at"] is not None


async def test_another_keys_are_not_there_nor_are_other_batches(http: httpx.AsyncClient) -> None:
    batch = (await made(http))["id"]
    (file,) = (await http.get("/v1/files")).json()["data"]
    asked = {
        "input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h",
    }  # fmt: skip
    other = (await http.post("/v1/batches", json=asked)).json()["id"]
    assert (await http.get(f"{PATH}/{other}")).status_code == 404
    assert [each["id"] for each in (await http.get(PATH)).json()["data"]] == [batch]
    for method, path in (("GET", ""), ("POST", "/cancel"), ("DELETE", ""), ("GET", "/results")):
        answer = await http.request(method, f"{PATH}/{batch}{path}", headers=YOURS)
        assert answer.status_code == 404


@pytest.mark.parametrize(
    ("requests", "field"),
    [
        ([], "requests"),
        ([{"custom_id": "a", "params": {}}] * 2, "requests[1].custom_id"),
        ([{"custom_id": "", "params": {}}], "requests[0].custom_id"),
        ([{"custom_id": "a"}], "requests[0].params"),
        ([{"custom_id": "a", "params": [None, None]}], "requests[0].params"),
        ([{"custom_id": str(n), "params": {}} for n in range(20)], "requests"),
    ],
)
async def test_what_is_refused_is_named(http: httpx.AsyncClient, requests, field) -> None:
    answer = await http.post(PATH, json={"requests": requests})
    assert answer.json()["error"]["details"]["param"] == field
    assert (await http.get("/v1/files")).json()["data"] == []
