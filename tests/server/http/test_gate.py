"""Handlers that break, which no request can bring about from outside."""

import json

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from engine_core.refusal import RefusalError
from server.http.answers import DONE, EventStream, error_event, event
from server.http.body import ClientLeftError
from server.http.gate import Gate, RouteTable
from server.service.endpoint import Endpoint
from server.service.service import Registry, Service
from tests.server.support import served_model, server_config


async def half(_: Request) -> Response:
    async def parts():
        yield b"one half"
        raise ZeroDivisionError

    return StreamingResponse(parts())


async def late(_: Request) -> Response:
    async def events():
        yield event(b"{}")
        raise RefusalError("too_large", "too many", "logprobs")

    return EventStream(events(), DONE, error_event)


async def elsewhere(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/left":
        raise ClientLeftError
    await Response(f"{scope['method']} {scope['path']}")(scope, receive, send)


HANDLERS = {"/half": half, "/late": late}


@pytest.fixture
def service(folder) -> Service:
    model = served_model("writer", "generate", folder, "ipc://nowhere", vocab_size=400)
    endpoints = [Endpoint("GET", path) for path in HANDLERS]
    return Service(server_config(model), Registry.load((model,), endpoints))


@pytest.fixture
def app(service) -> ASGIApp:
    table = RouteTable(APIRoute(path, handler) for path, handler in HANDLERS.items())
    return Gate(service, table, others=elsewhere)


async def get(app: ASGIApp, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as http:
        return await http.get(path, headers={"x-request-id": "mine"})


async def test_an_answer_that_breaks_halfway_is_cut_off_and_told_to_the_log(app, caplog):
    with pytest.raises(ZeroDivisionError):
        await get(app, "/half")
    assert "request mine failed" in caplog.text


async def test_a_refusal_of_the_servers_own_is_the_last_event_of_a_stream(app, service, caplog):
    first, last = (await get(app, "/late")).text.removesuffix("\n\n").split("\n\n")
    assert first == "data: {}"
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["code"], error["param"]) == ("too_large", "logprobs")
    assert caplog.text == ""
    counted = 'penstock_refusals_total{reason="too_large"} 1.0'
    assert counted in (await service.metrics.page()).decode()


async def test_a_client_that_leaves_is_no_failure_wherever_it_shows(app, service, caplog):
    scope = {"type": "http", "method": "GET", "path": "/left", "headers": []}
    await app(scope, receive=None, send=None)
    assert caplog.text == ""
    counted = 'penstock_http_requests_total{endpoint="other",status="499"} 1.0'
    assert counted in (await service.metrics.page()).decode()
