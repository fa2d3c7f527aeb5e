"""A handler that breaks, which no request can bring about from outside."""

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp

from server.app import create_app
from server.registry import Registry
from server.service import Service
from tests.server.support import served_model, server_config


@pytest.fixture
def app(folder) -> ASGIApp:
    model = served_model("writer", "generate", folder, "ipc://nowhere", vocab_size=400)
    app = create_app(Service(server_config(model), Registry.load((model,))))

    @app.get("/broken")
    async def broken(_: Request) -> None:
        raise ZeroDivisionError("the secret divisor")

    @app.get("/half")
    async def half(_: Request) -> StreamingResponse:
        async def parts():
            yield b"one half"
            raise ZeroDivisionError

        return StreamingResponse(parts())

    return app


async def get(app: ASGIApp, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as http:
        return await http.get(path, headers={"x-request-id": "mine"})


async def test_a_broken_handler_answers_500_and_tells_the_log_why(app, caplog):
    response = await get(app, "/broken")
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert response.headers["x-request-id"] == "mine"
    assert "secret" not in response.text
    assert "request mine failed" in caplog.text
    assert "the secret divisor" in caplog.text


async def test_an_answer_that_breaks_halfway_is_cut_off(app):
    with pytest.raises(ZeroDivisionError):
        await get(app, "/half")


async def test_both_are_counted(app):
    await get(app, "/broken")
    page = (await get(app, "/metrics")).text
    assert 'penstock_http_requests_total{endpoint="other",status="500"} 1.0' in page
