"""Every failure of the server's own is answered, and is one line of the log with its reason."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from engine_core.messages import Failed
from engine_core.tokenization.sliced_text import SlicedText
from engine_core.tokenization.tokenizer import Tokenizer
from server.api import files_and_batches, ops
from server.api.messages import batches
from server.api.responses import stored, websocket
from server.daemon.application import all_endpoints, create_app
from server.observe.metrics import Metrics
from server.service.service import Model, Registry, Service
from tests.patience import PATIENCE
from tests.server.batches.state.test_endpoints import batch_of
from tests.server.chat_templates import LLAMA3, write_template
from tests.server.conftest import own_builder
from tests.server.fake_engine import FakeEngine, Script
from tests.server.support import server_config
from workers.contract.config import Task

pytestmark = pytest.mark.asyncio(loop_scope="module")

TASKS: tuple[Task, ...] = ("generate", "embed", "embed_sparse", "classify")
PAIR = {"query": "a", "documents": ["b"], "model": "classify"}
PAIR_OF_TEXTS = {"text_1": "a", "text_2": "b", "model": "classify"}
HELLO = [{"role": "user", "content": "a"}]

REFUSED_BY_ENGINE = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": HELLO},
    "/v2/chat": {"messages": HELLO},
    "/cohere/v2/chat": {"messages": HELLO},
    "/v1/responses": {"input": "a"},
    "/v1/responses/compact": {"input": "a", "model": "generate"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 3},
    "/v1/decisions": {"input": "a", "questions": [{"type": "predicate", "instructions": "a"}]},
    "/v1/systemone": {"state": "a", "questions": {"q": {"type": "noul"}}},
    "/v1/embeddings": {"input": "a"},
    "/v1/embed": {"texts": ["a"]},
    "/v2/embed": {"texts": ["a"]},
    "/v1/rerank": PAIR,
    "/v2/rerank": PAIR,
    "/rerank": PAIR,
    "/v1/score": PAIR_OF_TEXTS,
    "/score": PAIR_OF_TEXTS,
    "/v1/classify": {"input": "a"},
    "/classify": {"input": "a"},
    "/pooling": {"input": "a", "model": "classify"},
    "/invocations": {"prompt": "a"},
    "/": {"inputs": "a"},
    "/embed": {"inputs": "a"},
    "/embed_all": {"inputs": "a"},
    "/embed_sparse": {"inputs": "a"},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    "/predict": {"inputs": "a"},
}
BROKEN_INSIDE = {
    ("POST", "/tokenize"): (SlicedText, "take"),
    ("POST", "/v1/messages/count_tokens"): (SlicedText, "take"),
    ("POST", "/detokenize"): (Tokenizer, "decode"),
    ("GET", "/v1/responses"): (websocket, "RefusalError"),
    **dict.fromkeys(
        [
            (each.method, each.path)
            for each in all_endpoints()
            if each.path.startswith(("/v1/files", "/v1/batches"))
        ],
        (files_and_batches, "stored_of"),
    ),
    **dict.fromkeys(
        [
            (each.method, each.path)
            for each in all_endpoints()
            if each.path.startswith("/v1/responses/{")
        ],
        (stored, "stored_of"),
    ),
    ("POST", "/v1/responses/input_tokens"): (SlicedText, "take"),
    **dict.fromkeys(
        [
            (each.method, each.path)
            for each in all_endpoints()
            if each.path.startswith("/v1/messages/batches")
        ],
        (batches, "stored_of"),
    ),
    ("POST", "/decode"): (Tokenizer, "decode"),
    ("GET", "/info"): (Registry, "find"),
    ("GET", "/tokenizer_info"): (Registry, "find"),
    ("GET", "/v1/models"): (ops, "_card"),
    ("GET", "/v1/models/{model}"): (Registry, "named"),
    **{
        ("GET", path): (Model, "check_alive")
        for path in ("/health", "/health/live", "/health/ready", "/ping")
    },
    ("GET", "/version"): (ops, "Version"),
    ("GET", "/"): (ops, "json_answer"),
    ("GET", "/status"): (ops, "status_of"),
    ("GET", "/metrics"): (Metrics, "page"),
}
BODIES = {
    "/v1/responses/input_tokens": {"input": "a", "model": "generate"},
    "/tokenize": {"prompt": "a", "model": "generate"},
    "/v1/messages/count_tokens": {"messages": HELLO},
    "/detokenize": {"tokens": [5], "model": "generate"},
    "/decode": {"ids": [5]},
    "/v1/batches": batch_of("a"),
    "/v1/messages/batches": {"requests": [{"custom_id": "a", "params": {}}]},
}


def code_of(error: dict[str, Any]) -> str:
    """Anthropic's shape has it among the details."""
    return error["details"]["error_code"] if "details" in error else error["code"]


def broken(*_: object, **__: object) -> object:
    raise ZeroDivisionError("the divisor")


@pytest.fixture(scope="module")
def script() -> Script:
    """Of all engines: they refuse every job."""
    return Script(refusal=Failed(0, "row_failed", "no finite result"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(tokenizer: Tokenizer, script: Script) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application in this process."""
    with own_builder(tokenizer) as builder, ExitStack() as engines:
        models = [builder.model(task, task) for task in TASKS]
        write_template(Path(models[0].path), LLAMA3)
        for model, task in zip(models, TASKS, strict=True):
            endpoint = model.engine.client_endpoint
            engines.enter_context(FakeEngine(endpoint, tokenizer, task=task, script=script))
        service = Service(server_config(*models), Registry.load(models, all_endpoints()))
        service.registry.start()
        transport = httpx.ASGITransport(create_app(service), raise_app_exceptions=False)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://penstock", headers={"x-request-id": "mine"}
        ) as client:
            async with asyncio.timeout(PATIENCE):
                while (await client.get("/health/ready")).status_code != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            yield client
        await service.registry.close()


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("path", REFUSED_BY_ENGINE)
async def test_a_job_that_fails(http: httpx.AsyncClient, caplog, path: str) -> None:
    response = await http.post(path, json=REFUSED_BY_ENGINE[path])
    assert response.status_code in {500, 424}
    assert "no finite result" in response.text
    assert failures(caplog) == [f"request mine failed: POST {path}: row_failed: no finite result"]


@pytest.mark.parametrize(("method", "path"), BROKEN_INSIDE)
async def test_a_handler_that_breaks(
    http: httpx.AsyncClient, caplog, monkeypatch, method: str, path: str
) -> None:
    monkeypatch.setattr(*BROKEN_INSIDE[method, path], broken)
    url = path.replace("{model}", "embed")
    response = await http.request(method, url, json=BODIES.get(path))
    assert response.status_code == 500
    assert code_of(response.json()["error"]) == "internal_error"
    assert response.headers["x-request-id"] == "mine"
    reason = "internal_error: ZeroDivisionError('the divisor')"
    assert failures(caplog) == [f"request mine failed: {method} {url}: {reason}"]
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages"])
async def test_a_stream_that_breaks_has_an_event_that_says_so(
    http: httpx.AsyncClient, caplog, monkeypatch, script: Script, path: str
) -> None:
    monkeypatch.setattr(script, "refusal", None)
    monkeypatch.setattr(script, "fail_after", 1)
    response = await http.post(path, json={**REFUSED_BY_ENGINE[path], "stream": True})
    assert response.status_code == 200
    last = json.loads(response.text.strip().rpartition("data: ")[2])
    assert code_of(last["error"]) == "row_failed"
    assert failures(caplog) == [f"request mine failed: POST {path}: row_failed: no finite result"]


async def test_no_endpoint_is_left_out(http: httpx.AsyncClient) -> None:
    paths = (await http.get("/openapi.json")).json()["paths"]
    documented = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert documented == BROKEN_INSIDE.keys() | {("POST", path) for path in REFUSED_BY_ENGINE}
