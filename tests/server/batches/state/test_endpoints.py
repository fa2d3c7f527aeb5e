"""`/v1/files` and `/v1/batches` in front of a state folder, without a batch process."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
import pytest_asyncio

from server.daemon.application import all_endpoints, create_app
from server.service.service import Registry, Service
from server.settings.settings import Limits, State
from tests.server.batches.state.opened import prepared
from tests.server.support import api_keys, server_config

LIMITS = Limits(max_body_size=1000, max_file_size=5000, max_file_lines=9, max_stored_size=8000)
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
CONTENTS = b'{"custom_id": "1"}\n{"custom_id": "2"}\n'
FORM = {"file": ("a.jsonl", CONTENTS)}
LONGEST_ERROR = 4096
MINE, YOURS = ({"authorization": f"Bearer {key}"} for key in ("mine", "yours"))


@asynccontextmanager
async def served(state: State, *keys: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client, which sends the key of MINE if there are keys."""
    config = msgspec.structs.replace(
        server_config(limits=LIMITS), state=state, api_keys=api_keys(*keys)
    )
    service = Service(config, Registry([], all_endpoints()))
    transport = httpx.ASGITransport(create_app(service))
    headers = MINE if keys else None
    base = "http://penstock"
    async with httpx.AsyncClient(transport=transport, base_url=base, headers=headers) as client:
        yield client


@pytest.fixture
def state(tmp_path: Path) -> State:
    return prepared(tmp_path)


@pytest_asyncio.fixture
async def http(state: State) -> AsyncIterator[httpx.AsyncClient]:
    async with served(state, "mine", "yours") as client:
        yield client


async def upload(
    http: httpx.AsyncClient, contents: bytes = CONTENTS, headers: Any = None, **fields: str
) -> httpx.Response:
    fields = {"purpose": "batch"} | fields
    files = {"file": ("my file.jsonl", contents)}
    return await http.post("/v1/files", data=fields, files=files, headers=headers)


async def test_a_file_is_kept(http: httpx.AsyncClient, tmp_path: Path) -> None:
    answer = await upload(http)
    assert answer.status_code == 200, answer.text
    file = answer.json()
    assert file["bytes"] == len(CONTENTS)
    assert (file["filename"], file["purpose"]) == ("my file.jsonl", "batch")
    assert "expires_at" not in file
    found = await http.get(f"/v1/files/{file['id']}")
    assert found.json() == file
    content = await http.get(f"/v1/files/{file['id']}/content")
    assert content.content == CONTENTS
    gone = await http.delete(f"/v1/files/{file['id']}")
    assert gone.json() == {"id": file["id"], "object": "file", "deleted": True}
    for method in ("GET", "DELETE"):
        again = await http.request(method, f"/v1/files/{file['id']}")
        assert (again.status_code, again.json()["error"]["code"]) == (404, "not_found")
    assert list((tmp_path / "files").iterdir()) == []


@pytest.mark.parametrize("letter", ["x", "\U000e0001", "\x01", "🎉"])
async def test_no_name_makes_an_error_long(http: httpx.AsyncClient, letter: str) -> None:
    name = letter * 300
    file = (await upload(http)).json()["id"]
    purpose = await upload(http, purpose=name)
    named = await http.post("/v1/files", data={name: "x" * 5000}, files=FORM)
    batch = await http.post("/v1/batches", json=batch_of(name))
    url = await http.post("/v1/batches", json=batch_of(file) | {"endpoint": name})
    lists = [await http.get("/v1/files", params={"order": name})]
    lists += [await http.get(f"/v1/{kind}/{quote(name)}") for kind in ("files", "batches")]
    for answer in (purpose, named, batch, url, *lists):
        assert answer.status_code >= 400, answer.url
        assert len(answer.content) <= LONGEST_ERROR, answer.text


async def test_another_keys_are_not_there(http: httpx.AsyncClient) -> None:
    file = (await upload(http)).json()["id"]
    made = await http.post("/v1/batches", json=batch_of(file))
    assert made.status_code == 200, made.text
    batch = made.json()["id"]
    for method, path in (
        ("GET", f"/v1/files/{file}"),
        ("GET", f"/v1/files/{file}/content"),
        ("DELETE", f"/v1/files/{file}"),
        ("GET", f"/v1/batches/{batch}"),
        ("POST", f"/v1/batches/{batch}/cancel"),
    ):
        assert (await http.request(method, path, headers=YOURS)).status_code == 404, path
    assert (await http.post("/v1/batches", json=batch_of(file), headers=YOURS)).status_code == 400
    for path in ("/v1/files", "/v1/batches"):
        assert (await http.get(path, headers=YOURS)).json()["data"] == []
        assert len((await http.get(path)).json()["data"]) == 1
    assert (await http.get("/v1/files", headers={"authorization": ""})).status_code == 401


async def test_lists_come_in_pages(http: httpx.AsyncClient) -> None:
    ids = {(await upload(http)).json()["id"] for _ in range(3)}
    first = (await http.get("/v1/files?limit=2")).json()
    assert (len(first["data"]), first["has_more"]) == (2, True)
    assert first["last_id"] == first["data"][1]["id"]
    rest = (await http.get(f"/v1/files?after={first['last_id']}")).json()
    assert (len(rest["data"]), rest["has_more"]) == (1, False)
    assert {file["id"] for file in first["data"] + rest["data"]} == ids
    turned = (await http.get("/v1/files?order=asc")).json()["data"]
    assert turned == (first["data"] + rest["data"])[::-1]
    assert (await http.get("/v1/files?purpose=batch_output")).json()["data"] == []


@pytest.mark.parametrize("query", ["limit=0", "limit=10001", "limit=x", "limit=-1", "order=up"])
async def test_what_is_no_page_is_refused(http: httpx.AsyncClient, query: str) -> None:
    answer = await http.get(f"/v1/files?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == query.partition("=")[0]


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches"])
async def test_a_page_behind_nothing_is_refused(http: httpx.AsyncClient, path: str) -> None:
    file = (await upload(http)).json()["id"]
    batch = (await http.post("/v1/batches", json=batch_of(file))).json()["id"]
    known = file if path == "/v1/files" else batch
    answer = await http.get(path, params={"after": known})
    assert (answer.status_code, answer.json()["data"]) == (200, [])
    for after, headers in (("x" * 500, None), ("", None), (known, YOURS)):
        answer = await http.get(path, params={"after": after}, headers=headers)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after")
        assert after[:99] in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("contents", "fields", "status", "param"),
    [
        (b"x" * 5001, {}, 413, "file"),
        (b"\n" * 10, {}, 400, "file"),
        (CONTENTS, {"purpose": "fine-tune"}, 400, "purpose"),
        (CONTENTS, {ANCHOR: "now", SECONDS: "3600"}, 400, ANCHOR),
        (CONTENTS, {ANCHOR: "created_at", SECONDS: "1"}, 400, SECONDS),
        (CONTENTS, {ANCHOR: "created_at"}, 400, "expires_after"),
        (CONTENTS, {SECONDS: "3600"}, 400, "expires_after"),
        (CONTENTS, {"note": "x" * 5000}, 400, "note"),
    ],
)  # fmt: skip
async def test_a_wrong_upload_leaves_nothing(
    http: httpx.AsyncClient, tmp_path: Path, contents, fields, status, param
) -> None:
    answer = await upload(http, contents, **fields)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param
    assert list((tmp_path / "files").iterdir()) == []


async def test_files_may_expire_and_a_key_may_store_so_much(http: httpx.AsyncClient) -> None:
    kept: Any = {ANCHOR: "created_at", SECONDS: "3600"}
    file = (await upload(http, b"", **kept)).json()
    assert file["expires_at"] == file["created_at"] + 3600
    for size, status in ((5000, 200), (3001, 403), (3000, 200)):
        answer = await upload(http, b"x" * size)
        assert answer.status_code == status, answer.text
    assert (await upload(http, b"x" * 3001, YOURS)).status_code == 200


BOUNDARY = "multipart/form-data; boundary=b"
PART = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nabc\r\n'
PURPOSE = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        ("application/json", b"{}", "multipart/form-data"),
        ("multipart/form-data", PART, "boundary"),
        (BOUNDARY, b"", "ends before"),
        (BOUNDARY, PART + PURPOSE, "ends before"),
        (BOUNDARY, PURPOSE + b"--b--\r\n", "file: is required"),
        (BOUNDARY, PART + b"--b--\r\n", "purpose: is required"),
        (BOUNDARY, PART + PART + b"--b--\r\n", "Too many files"),
        (BOUNDARY, PART.replace(b'; filename="a"', b"") + b"--b--\r\n", "file: is required"),
        (BOUNDARY, b"nonsense", "not a form"),
        (f"{BOUNDARY}{'b' * 256}", PART, "not a form"),
        (BOUNDARY, PURPOSE.replace(b"purpose", b"a") * 33 + b"--b--\r\n", "Too many fields"),
        (BOUNDARY, PART.replace(b'"file"', b'"other"') + b"--b--\r\n", "file is the field file"),
    ],
)
async def test_what_is_no_form_is_explained(
    http: httpx.AsyncClient, tmp_path: Path, kind: str, body: bytes, says: str
) -> None:
    answer = await http.post("/v1/files", content=body, headers={"content-type": kind})
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]["message"]
    assert list((tmp_path / "files").iterdir()) == []


async def test_no_form_is_the_servers_fault(http: httpx.AsyncClient, tmp_path: Path) -> None:
    """Headers and parts at random, of the words that parsers stumble over."""
    chance = random.Random(38)
    good = [*PART.split(b" "), *PURPOSE.split(b";")]
    odd = [b"\r\n", *b"*=utf-8''%e2%82 *0= \xff \" \\ ; = \x00 --b :".split(b" ")]
    odd_boundaries = (f"{BOUNDARY}*=utf-8''%e2", f"{BOUNDARY}; boundary")
    kinds = [BOUNDARY, *odd_boundaries, 'multipart/form-data; ="']
    kinds += [f"multipart/form-data; boundary={'b' * size}" for size in (70, 256, 257, 5000)]
    for _ in range(300):
        pieces = chance.choices(good + odd, k=chance.randrange(20))
        kind = chance.choice(kinds)
        answer = await http.post(
            "/v1/files", content=PART + b" ".join(pieces), headers={"content-type": kind}
        )
        assert 400 <= answer.status_code < 500, (answer.text, kind, pieces)
    assert list((tmp_path / "files").iterdir()) == []


async def test_a_form_may_come_in_any_pieces_but_not_compressed(http: httpx.AsyncClient) -> None:
    answer = await upload(http, headers={"content-encoding": "gzip"})
    error = answer.json()["error"]["code"]
    assert (answer.status_code, error) == (415, "unsupported_encoding")
    body = PART + PURPOSE + b"--b--\r\n"

    async def pieces() -> AsyncIterator[bytes]:
        for index in range(len(body)):
            yield body[index : index + 1]

    answer = await http.post("/v1/files", content=pieces(), headers={"content-type": BOUNDARY})
    assert answer.status_code == 200, answer.text
    assert answer.json()["bytes"] == 3


def batch_of(file: str, **fields: Any) -> dict[str, Any]:
    given = {
        "input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h",
    }  # fmt: skip
    return given | fields


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_file_id": "file-x"}, "input_file_id"),
        ({"input_file_id": "../lock"}, "input_file_id"),
        ({"endpoint": "/v1/score"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"a": 5}}, "metadata"),
        ({"metadata": {str(n): "a" for n in range(17)}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after"),
    ],
)
async def test_a_wrong_batch_is_refused(http: httpx.AsyncClient, fields: Any, param: str) -> None:
    file = (await upload(http)).json()["id"]
    answer = await http.post("/v1/batches", json=batch_of(file, **fields))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(param)
    assert (await http.get("/v1/batches")).json()["data"] == []


async def test_a_batch_waits_and_is_cancelled(http: httpx.AsyncClient) -> None:
    file = (await upload(http)).json()["id"]
    made = await http.post("/v1/batches", json=batch_of(file, metadata={"a": "b"}))
    batch = made.json()
    assert (batch["status"], batch["metadata"]) == ("validating", {"a": "b"})
    assert batch["expires_at"] == batch["created_at"] + 86_400
    assert batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert (await http.get(f"/v1/batches/{batch['id']}")).json() == batch
    cancelled = await http.post(f"/v1/batches/{batch['id']}/cancel")
    assert cancelled.json()["status"] == "cancelling"
    listed = (await http.get("/v1/batches?limit=1")).json()
    assert [each["id"] for each in listed["data"]] == [batch["id"]]
    assert listed["has_more"] is False


async def test_contents_that_are_lost_are_gone(http: httpx.AsyncClient, tmp_path: Path) -> None:
    file = (await upload(http)).json()["id"]
    (tmp_path / "files" / file).unlink()
    for headers in ({}, {"range": "bytes=0-4"}):
        answer = await http.get(f"/v1/files/{file}/content", headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (410, "gone")
    assert (await http.get(f"/v1/files/{file}")).status_code == 200
    assert (await http.delete(f"/v1/files/{file}")).status_code == 200


def is_unavailable(answer: httpx.Response) -> bool:
    return (answer.status_code, answer.json()["error"]["code"]) == (501, "state_unavailable")


async def test_a_lost_database_is_told_to_clients(http: httpx.AsyncClient, tmp_path: Path) -> None:
    file = (await upload(http)).json()["id"]
    (tmp_path / "penstock.db").unlink()
    answers = [
        await upload(http),
        await http.post("/v1/batches", json=batch_of(file)),
        await http.post("/v1/batches/batch-1/cancel"),
        await http.delete(f"/v1/files/{file}"),
    ]
    paths = ("files", f"files/{file}", f"files/{file}/content", "batches", "batches/batch-1")
    answers += [await http.get(f"/v1/{path}") for path in paths]
    for answer in answers:
        assert is_unavailable(answer), answer.text
    assert [path.name for path in (tmp_path / "files").iterdir()] == [file]


async def test_without_a_state_folder_it_says_why() -> None:
    async with served(State(fault="nothing is stored: --state-dir is none")) as http:
        for method, path in (("POST", "/v1/files"), ("GET", "/v1/files/a"), ("GET", "/v1/batches")):
            answer = await http.request(method, path)
            assert is_unavailable(answer)
            assert "--state-dir" in answer.text
