"""`/v1/responses` by WebSocket: turns on one connection, and how each ends."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import dropwhile, groupby
from socket import SHUT_RDWR
from typing import Any
from unittest.mock import Mock

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection, connect

from engine_core.messages import Failed
from server.api.responses.websocket import ResponseSocket
from server.observe.request_record import RequestRecord
from server.service.ledger import Ledger
from server.settings.settings import State
from tests.patience import PATIENCE, wait_until
from tests.server.api.responses.test_responses import (
    PATH,
    PLAIN,
    WRITER,
    events_of,
    prompt_of,
)
from tests.server.api.test_ops import metric
from tests.server.batches.state.opened import prepared
from tests.server.chat_client import say_little
from tests.server.chat_templates import chat_deployment
from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.support import server_config
from tests.virtual_time import in_virtual_time

CREATE = {"type": "response.create", "model": "writer", "input": "Hello"}
ENDS = {"response.completed", "response.incomplete", "response.failed", "error"}
KEY = {"Authorization": "Bearer sesame"}
LONGEST = 20_000


@pytest.fixture(scope="module")
def open_deployment(tokenizer) -> Iterator[Deployment]:
    with chat_deployment(tokenizer, {"writer": WRITER}, max_body_size=LONGEST) as deployment:
        yield deployment


@pytest.fixture
def deployment(open_deployment) -> Deployment:
    return say_little(open_deployment)


@pytest.fixture
def socket(deployment) -> Iterator[ClientConnection]:
    with opened(deployment) as socket:
        yield socket


def opened(deployment: Deployment, path: str = PATH, **headers: str) -> ClientConnection:
    url = f"ws://127.0.0.1:{deployment.api.port}{path}"
    return connect(url, additional_headers=headers, open_timeout=PATIENCE, proxy=None)


def next_event(socket: ClientConnection) -> dict[str, Any]:
    return json.loads(socket.recv(PATIENCE))


def events(socket: ClientConnection) -> list[dict[str, Any]]:
    """Those of one response."""
    found = [next_event(socket)]
    while found[-1]["type"] not in ENDS:
        found.append(next_event(socket))
    return found


def create(socket: ClientConnection, **fields: Any) -> dict[str, Any]:
    """The last event of a response, or its error."""
    socket.send(json.dumps(CREATE | fields))
    return events(socket)[-1]


def answered(socket: ClientConnection, **fields: Any) -> dict[str, Any]:
    last = create(socket, **fields)
    assert last["type"] == "response.completed", last
    return last["response"]


def refused(socket: ClientConnection, **fields: Any) -> dict[str, Any]:
    last = create(socket, **fields)
    assert last["type"] == "error", last
    return last["error"]


def close_code(socket: ClientConnection) -> int:
    """That of a connection which ends without another message."""
    with pytest.raises(ConnectionClosed) as closed:
        socket.recv(PATIENCE)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


def kinds(sent: list[dict[str, Any]]) -> list[str]:
    """Their types, of which several that are the same count once."""
    return [kind for kind, _ in groupby(event["type"] for event in sent)]


def test_a_response_has_the_events_of_a_stream(deployment, socket, say):
    say(PLAIN)
    streamed = kinds(events_of(deployment))
    for _ in range(2):
        socket.send(json.dumps(CREATE))
        sent = events(socket)
        assert kinds(sent) == streamed
        assert [event["sequence_number"] for event in sent] == [*range(len(sent))]
        assert sent[-1]["response"]["output"][-1]["content"][0]["text"] == "No."


def test_the_last_response_is_continued_though_nothing_is_stored(deployment, socket, say):
    say(PLAIN)
    first = answered(socket, input="First", store=False)
    second = answered(socket, input=[{"role": "user", "content": "Second"}],
                      previous_response_id=first["id"])  # fmt: skip
    deployment.engines["writer"].received.clear()
    answered(socket, input="Third", previous_response_id=second["id"])
    prompt, begin = prompt_of(deployment), 0
    for text in ("First", "No.", "Second", "No.", "Third"):
        begin = prompt.index(text, begin) + len(text)


@pytest.mark.parametrize("how", ["elsewhere", "later", "failed", "unknown"])
def test_no_other_response_is_continued(deployment, socket, how):
    """Nor one whose continuation has failed."""
    name = answered(socket)["id"]
    if how == "later":
        answered(socket)
    if how == "failed":
        assert refused(socket, previous_response_id=name, temperature=9)["param"] == "temperature"
    if how == "elsewhere":
        with opened(deployment) as other:
            error = refused(other, previous_response_id=name)
    else:
        error = refused(socket, previous_response_id="resp_1" if how == "unknown" else name)
    assert (error["code"], error["param"]) == (
        "previous_response_not_found",
        "previous_response_id",
    )


def test_a_failure_leaves_what_it_did_not_refer_to(socket):
    name = answered(socket)["id"]
    refused(socket, temperature=9)
    answered(socket, previous_response_id=name)


def test_a_conversation_has_an_end(socket):
    text = "a" * (LONGEST // 2)
    first = answered(socket, input=text, truncation="auto")["id"]
    second = answered(socket, input=text, truncation="auto", previous_response_id=first)["id"]
    error = refused(socket, previous_response_id=second)
    assert (error["code"], error["param"]) == ("too_large", "previous_response_id")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("{", None),
        ("[1]", None),
        ("1", None),
        ("[" * 10_000, None),
        (b"{}", None),
        ({}, "type"),
        ({"type": None}, "type"),
        ({"type": "response.cancel"}, "type"),
        (CREATE | {"generate": False}, "generate"),
        (CREATE | {"stream_id": "a"}, "stream_id"),
        (CREATE | {"background": True}, "background"),
        (CREATE | {"input": [{"role": "cook", "content": "a"}]}, "input[0].role"),
        ({"type": "response.create", "model": "writer"}, "input"),
        (CREATE | {"model": "nobody"}, "model"),
    ],
)
def test_what_is_wrong_is_said_and_the_connection_goes_on(socket, message, param):
    socket.send(json.dumps(message) if isinstance(message, dict) else message)
    (event,) = events(socket)
    error = event["error"]
    assert (event["type"], error["param"]) == ("error", param)
    assert event["status"] in {400, 404}
    assert error["code"] in {"invalid_request", "model_not_found"}
    assert (param or "") in error["message"]
    assert error["headers"]["x-request-id"].startswith("req-")
    answered(socket, generate=True, stream_id=None, stream=False)


def test_an_engine_that_fails_ends_a_response_once(deployment, socket, say):
    say(PLAIN)
    deployment.engines["writer"].script.fail_after = 2
    last = create(socket)
    assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "row_failed")
    deployment.engines["writer"].script.fail_after = None
    answered(socket)


def test_an_engine_that_refuses_says_when_to_come_again(deployment, socket):
    script = deployment.engines["writer"].script
    script.refusal = Failed(0, "unhealthy", "a stage has stopped")
    error = refused(socket)
    assert (error["code"], error["headers"]["retry-after"]) == ("unhealthy", "2")


def begin(deployment: Deployment, socket: ClientConnection) -> None:
    """Have a response run until the test ends."""
    deployment.reset(tokens=[40, 41], held=True)
    socket.send(json.dumps(CREATE))
    wait_until(lambda: deployment.engines["writer"].received)


@pytest.mark.parametrize("properly", [True, False])
def test_who_leaves_has_the_response_aborted(deployment, socket, properly):
    begin(deployment, socket)
    if properly:
        socket.close()
    else:
        socket.socket.shutdown(SHUT_RDWR)
    wait_until(lambda: deployment.engines["writer"].aborted)
    wait_until(lambda: metric(deployment, "penstock_in_flight", what="requests") == 0)


def test_messages_wait_for_the_response(deployment, socket):
    begin(deployment, socket)
    for number in "12":
        socket.send(json.dumps(CREATE | {"metadata": {"number": number}}))
    say_little(deployment)
    answers = [events(socket)[-1]["response"] for _ in range(3)]
    assert [answer["metadata"].get("number") for answer in answers] == [None, "1", "2"]


def test_not_too_many_of_them_wait(deployment, socket):
    begin(deployment, socket)
    for _ in range(9):
        socket.send(json.dumps(CREATE))
    last = events(socket)[-1]
    assert (last["type"], last["error"]["code"]) == ("error", "overloaded")
    assert close_code(socket) == 1008
    wait_until(lambda: deployment.engines["writer"].aborted)


def test_a_message_may_be_as_large_as_a_body(deployment, socket):
    counted = {"reason": "body_too_large"}
    before = metric(deployment, "penstock_refusals_total", **counted)
    answered(socket, metadata={}, user="a" * (LONGEST - 1000))
    socket.send("a" * (LONGEST + 1))
    assert close_code(socket) == 1009
    wait_until(lambda: metric(deployment, "penstock_refusals_total", **counted) == before + 1)


def sent_raw(socket: ClientConnection, *frames: Frame) -> None:
    socket.socket.sendall(b"".join(frame.serialize(mask=True) for frame in frames))


def test_what_is_no_text_ends_the_connection(socket):
    sent_raw(socket, Frame(Opcode.TEXT, b"\xff"))
    assert close_code(socket) == 1007


def test_a_message_of_empty_frames_has_an_end(deployment, socket):
    empty = [Frame(Opcode.CONT, b"", fin=False)] * LONGEST
    with suppress(OSError):
        sent_raw(socket, Frame(Opcode.TEXT, b"", fin=False), *empty)
    with pytest.raises(ConnectionClosed):
        socket.recv(PATIENCE)
    with opened(deployment) as other:
        answered(other)


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ("", b" 101 "),
        ("Sec-WebSocket-Key: b3RoZXI=\r\n", b" 400 "),
        ("Content-Length: 0\r\n", b" 405 "),
        ("Authorization: a\r\nAuthorization: b\r\n", b" 400 "),
        ("a: b\r\n" * 200, b""),
    ],
)
def test_offers_byte_by_byte(deployment, more, status):
    with deployment.connect() as client:
        client.sendall(
            b"GET /v1/responses HTTP/1.1\r\nHost: a\r\n"
            b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            + more.encode()
            + b"\r\n"
        )
        assert client.recv(1 << 10)[8:13] == status


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/chat/completions", "/v1/nothing"])
def test_other_paths_open_none(deployment, path):
    with pytest.raises(InvalidStatus) as answer:
        opened(deployment, path)
    assert answer.value.response.status_code == deployment.http.get(path).status_code


def test_without_an_offer_the_path_is_for_post(deployment):
    answer = deployment.http.get(PATH)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert "WebSocket" in answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def guarded(module_builder: DeploymentBuilder) -> Deployment:
    writer = module_builder.model("writer", "generate")
    own = {"access_log": "json", "cors_origins": ("https://page",)}
    return module_builder.open(server_config(writer, api_key="sesame", **own))


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}])
def test_without_a_key_nothing_is_opened(guarded, headers):
    with pytest.raises(InvalidStatus) as answer:
        opened(guarded, **headers)
    response = answer.value.response
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    assert json.loads(response.body)["error"]["code"] == "invalid_api_key"


def test_each_message_is_a_request_of_the_log(guarded):
    with opened(guarded, **KEY, **{"x-request-id": "mine"}) as socket:
        assert socket.response is not None
        assert socket.response.headers["x-request-id"] == "mine"
        error = refused(socket, model="nobody")
        socket.send("{")
        events(socket)

    def logged() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in guarded.api.output.read_bytes().splitlines()]
        return [*dropwhile(lambda line: line["id"] != "mine", lines)]

    wait_until(lambda: len(logged()) == 3)
    lines = logged()
    assert [(line["method"], line["status"], line["error"]) for line in lines] == [
        ("GET", 101, None),
        ("POST", 404, "model_not_found"),
        ("POST", 400, "invalid_request"),
    ]
    assert lines[0]["id"] == "mine"
    assert lines[1]["id"] == error["headers"]["x-request-id"] != "mine"


@pytest.mark.parametrize(("origin", "status"), [("https://page", 101), ("https://other", 400)])
def test_where_there_are_no_keys_pages_need_a_leave(builder, origin, status):
    writer = builder.model("writer", "generate")
    deployment = builder.open(server_config(writer, cors_origins=("https://page",)))
    if status == 101:
        with opened(deployment, Origin=origin):
            return
    with pytest.raises(InvalidStatus) as answer:
        opened(deployment, Origin=origin)
    assert answer.value.response.status_code == status
    assert origin in json.loads(answer.value.response.body)["error"]["message"]


def test_pages_of_any_origin_may_come_with_a_key(guarded):
    with opened(guarded, Origin="https://other", **KEY) as socket:
        answered_to = socket.response
        assert answered_to is not None
        assert answered_to.status_code == 101


@pytest.mark.parametrize("cut", [False, True])
def test_a_drain_lets_the_response_end(tokenizer, cut):
    """A second signal ends it."""
    with chat_deployment(tokenizer, {"writer": WRITER}, drain_timeout=PATIENCE) as deployment:
        with opened(deployment) as busy, opened(deployment) as idle:
            begin(deployment, busy)
            deployment.api.drain()
            wait_until(lambda: deployment.http.get("/health/ready").status_code == 503)
            assert refused(idle)["code"] == "draining"
            if cut:
                deployment.api.drain()
            else:
                say_little(deployment)
            last = events(busy)[-1]
            assert last["type"] == ("response.failed" if cut else "response.completed")
            assert [close_code(socket) for socket in (busy, idle)] == [1012, 1012]
        assert deployment.api.process.wait(PATIENCE) == 0


def test_what_has_come_of_messages_is_bounded(tokenizer):
    """Beyond the bound of all, the largest is refused."""
    most: dict[str, Any] = {"max_body_size": 1 << 20, "max_unread_size": 200_000}
    with (
        chat_deployment(tokenizer, {"writer": WRITER}, **most) as deployment,
        opened(deployment) as small,
        opened(deployment) as large,
    ):
        for socket, size in ((small, 60_000), (large, 150_000)):
            sent_raw(socket, Frame(Opcode.TEXT, b" " * size, fin=False))
        (event,) = events(large)
        assert event["error"]["code"] == "overloaded"
        assert close_code(large) == 1008
        end = Frame(Opcode.CONT, json.dumps(CREATE | {"max_output_tokens": 1}).encode())
        small.socket.sendall(end.serialize(mask=True))
        assert events(small)[-1]["type"] == "response.incomplete"


@in_virtual_time
async def test_a_connection_lasts_for_an_hour():
    begun, sent = asyncio.get_running_loop().time(), []

    async def gate(scope: Any, _: Any, send: Any) -> None:
        scope["record"] = RequestRecord(request_id="req-1", started=0.0)
        await send({"type": "http.response.start", "status": 101, "headers": []})

    async def receive() -> dict[str, Any]:
        if sent:
            await asyncio.Event().wait()
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    ledger, scope = Ledger(1 << 20), {"type": "websocket", "headers": []}
    await ResponseSocket(Mock(ledger=ledger), gate)(scope, receive, send)
    assert (ledger.num_bytes, scope.get("note_coming")) == (0, None)
    assert asyncio.get_running_loop().time() - begun == pytest.approx(3600)
    accepted, told, closed = sent
    assert json.loads(told["text"])["error"]["code"] == "websocket_connection_limit_reached"
    assert (accepted["type"], closed["type"]) == ("websocket.accept", "websocket.close")


@pytest.fixture
def state(tmp_path) -> State:
    return prepared(tmp_path)


@pytest.fixture
def storing(tokenizer, state) -> Iterator[Deployment]:
    with chat_deployment(tokenizer, {"writer": WRITER}, state=state) as deployment:
        yield say_little(deployment)


@pytest.mark.parametrize(
    "stored",
    [(False, False, True), (True, False, False), (True, False, True), (False, True, False)],
)
def test_stored_responses_and_others_are_one_conversation(storing, stored):
    with opened(storing) as socket:
        name, names = None, []
        for number, store in enumerate(stored):
            answer = answered(
                socket, input=f"Turn {number}", store=store, previous_response_id=name
            )
            assert answer["store"] == store
            name = answer["id"]
            names.append(name)
        storing.engines["writer"].received.clear()
        answered(socket, input="The last", previous_response_id=name)
    prompt, begin = prompt_of(storing), 0
    for text in ("Turn 0", "Turn 1", "Turn 2", "The last"):
        begin = prompt.index(text, begin) + len(text)
        assert prompt.count(text) == 1
    for name, store in zip(names, stored, strict=True):
        answer = storing.post(PATH, {"model": "writer", "input": "a", "previous_response_id": name})
        assert answer.status_code == (200 if store else 400)
