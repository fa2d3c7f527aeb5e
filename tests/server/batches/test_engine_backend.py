"""Lines before engines that compute nothing: through the API's handlers, within bounds."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from engine_core.messages import Failed
from engine_core.tokenization.tokenizer import Tokenizer
from server.batches.answering import Answer, Line
from server.batches.engine_backend import EngineBackend, engine_backend, exchange
from server.batches.results import JobStoppedError
from server.settings.settings import ServerConfig
from tests.patience import PATIENCE
from tests.server.batches.requests_file import until
from tests.server.conftest import DeploymentBuilder
from tests.server.fake_engine import FakeEngine

PREFIX = "Water falls from the gate into the turbine below, and the turbine turns. "


LATE = {"type": "predicate", "instructions": "It is late."}


class Rig:
    """A generator and an embedder, and the backend before them."""

    def __init__(self, backend: EngineBackend, writer: FakeEngine, embedder: FakeEngine) -> None:
        self.backend, self.writer, self.embedder = backend, writer, embedder
        self.answers: dict[int, Answer] = {}

    async def answer(self, *bodies: dict[str, Any], url: str = "/v1/completions") -> None:
        lines = [
            Line(index, "", url, json.dumps(body).encode()) for index, body in enumerate(bodies)
        ]
        async with asyncio.timeout(PATIENCE):
            await self.backend.answer(
                lines, lambda line, answer: self.answers.__setitem__(line.index, answer)
            )

    def statuses(self) -> list[int]:
        return [self.answers[index].status for index in sorted(self.answers)]


@asynccontextmanager
async def rig(
    folder: Path, tokenizer: Tokenizer, rows: int = 1000, tokens: int = 1 << 20
) -> AsyncGenerator[Rig]:
    """Engines that take `rows` and `tokens` at once, half of which are for lines."""
    builder = DeploymentBuilder(folder, tokenizer)
    models = [builder.model("writer", "generate"), builder.model("embedder", "embed")]
    bounds = {"max_pending_rows": rows, "max_pending_tokens": tokens}
    models = [
        msgspec.structs.replace(model, engine=msgspec.structs.replace(model.engine, **bounds))
        for model in models
    ]
    endpoints = [model.engine.client_endpoint for model in models]
    with (
        FakeEngine(endpoints[0], tokenizer) as writer,
        FakeEngine(endpoints[1], tokenizer, task="embed") as embedder,
    ):
        async with engine_backend(ServerConfig(models=tuple(models)), 0.5) as backend:
            yield Rig(backend, writer, embedder)


Open = Callable[..., AbstractAsyncContextManager[Rig]]


@pytest.fixture
def opened(folder: Path, tokenizer: Tokenizer) -> Open:
    return partial(rig, folder, tokenizer)


async def test_each_line_has_its_answer(opened: Open) -> None:
    async with opened() as here:
        await here.answer({"prompt": "a", "max_tokens": 3}, {"prompt": "", "n": 0}, {"model": "x"})
        assert here.statuses() == [200, 400, 400]
        assert json.loads(here.answers[0].body)["usage"]["completion_tokens"] == 3
        assert here.answers[0].request_id.startswith("req-")
        await here.answer({"input": ["a", "b"]}, {"input": ""}, url="/v1/embeddings")
        assert here.statuses()[:2] == [200, 400]
        decided = {"input": "a", "questions": [LATE, LATE]}
        await here.answer(decided, {"input": "a", "questions": []}, url="/v1/decisions")
        assert here.statuses()[:2] == [200, 400]
        assert len(json.loads(here.answers[0].body)["answers"]) == 2


async def test_lines_come_in_their_order_and_are_of_the_batch_band(opened: Open) -> None:
    async with opened() as here:
        texts = [f"{number:03}" for number in range(300)]
        await here.answer(*[{"prompt": text, "max_tokens": 1} for text in texts])
        assert [job.texts for job in here.writer.received] == [[text] for text in texts]
        await here.answer({"input": "a"}, url="/v1/embeddings")
        assert all(job.batch for job in [*here.writer.received, *here.embedder.received])


async def test_a_text_counts_its_tokens_once_they_are_known(
    opened: Open, tokenizer: Tokenizer
) -> None:
    body = {"prompt": PREFIX * 4, "max_tokens": 1}
    tokens = len(tokenizer.encode([PREFIX * 4], add_special_tokens=True)[0]) // 4
    assert 2 * tokens < len(PREFIX * 4)
    async with opened(tokens=4 * len(PREFIX * 4)) as here:
        here.writer.script.held = True
        answering = asyncio.create_task(here.answer(*[body] * 20))
        await until(lambda: here.writer.running >= 3)
        here.writer.script.held = False
        await answering
        assert here.statuses() == [200] * 20


@pytest.mark.parametrize(
    ("url", "body", "rows"),
    [
        ("/v1/completions", {"prompt": "a", "max_tokens": 1}, 1),
        ("/v1/completions", {"prompt": ["a", "b"], "n": 2, "max_tokens": 1}, 4),
        ("/v1/embeddings", {"input": ["a", "b"]}, 2),
        ("/v1/decisions", {"input": "a", "questions": [LATE] * 4}, 4),
    ],
    ids=["prompt", "prompts", "vectors", "questions"],
)
async def test_lines_leave_room_in_the_engine(opened: Open, url, body, rows) -> None:
    async with opened(rows=16) as here:
        engines = here.writer, here.embedder
        for engine in engines:
            engine.script.held = True
        answering = asyncio.create_task(here.answer(*[body] * 20, url=url))
        await until(lambda: sum(engine.running for engine in engines) >= 8 // rows)
        await asyncio.sleep(0.1)
        assert sum(engine.running for engine in engines) == 8 // rows
        for engine in engines:
            engine.script.held = False
        await answering
        assert here.statuses() == [200] * 20


async def test_lines_fill_every_copy_of_an_engine(folder: Path, tokenizer: Tokenizer) -> None:
    model = DeploymentBuilder(folder, tokenizer).model("writer", "generate")
    first, second = (
        msgspec.structs.replace(
            model.engine, max_pending_rows=16, client_endpoint=f"{model.engine.client_endpoint}{n}"
        )
        for n in (0, 1)
    )
    model = msgspec.structs.replace(model, engine=first, copies=(second,))
    with (
        FakeEngine(first.client_endpoint, tokenizer) as one,
        FakeEngine(second.client_endpoint, tokenizer) as other,
    ):
        one.script.held = other.script.held = True
        async with engine_backend(ServerConfig(models=(model,)), 0.5) as backend:
            here = Rig(backend, one, other)
            answering = asyncio.create_task(here.answer(*[{"prompt": "a", "max_tokens": 2}] * 40))
            await until(lambda: [one.running, other.running] == [8, 8])
            one.script.held = other.script.held = False
            await answering
    assert here.statuses() == [200] * 40
    counts = [len(engine.received) for engine in (one, other)]
    assert sum(counts) == 40
    assert min(counts) >= 16


async def test_a_line_that_is_larger_than_the_room_is_answered(opened: Open) -> None:
    async with opened(rows=4) as here:
        await here.answer(
            {"prompt": ["a"] * 9, "max_tokens": 1},
            {"prompt": "a", "n": 5, "max_tokens": 1},
            {"prompt": "b", "max_tokens": 1},
        )
        assert here.statuses() == [200] * 3


async def test_an_engine_that_is_full_is_asked_again(opened: Open) -> None:
    async with opened() as here:
        here.writer.script.refusal = Failed(0, "overloaded", "full", None, 0.01)
        answering = asyncio.create_task(here.answer({"prompt": "a"}, {"prompt": "b"}))
        await until(lambda: len(here.writer.received) >= 2)
        here.writer.script.refusal = None
        await answering
        assert here.statuses() == [200, 200]


async def test_a_lost_engine_stops_the_job(opened: Open) -> None:
    async with opened(rows=16) as here:
        here.writer.script.held = True
        answering = asyncio.create_task(here.answer(*[{"prompt": "a"}] * 20))
        await until(lambda: here.writer.running == 8)
        here.writer.kill()
        with pytest.raises(JobStoppedError, match=r"engine_dead|unhealthy"):
            await answering
        with pytest.raises(JobStoppedError, match="unhealthy"):
            await here.answer({"prompt": "a"})


async def test_who_leaves_takes_nothing_along(opened: Open) -> None:
    """Those that wait for room, and those at the engine."""
    async with opened(rows=16) as here:
        here.writer.script.held = True
        answering = asyncio.create_task(
            here.backend.answer(
                (Line(i, "", "/v1/completions", b'{"prompt": "a"}') for i in range(3000)),
                lambda *_: None,
            )
        )
        await until(lambda: here.writer.running == 8)
        answering.cancel()
        await asyncio.wait([answering])
        await until(lambda: here.writer.running == 0)
        here.writer.script.held = False
        await here.answer(*[{"prompt": "b", "max_tokens": 1}] * 20)
        assert here.statuses() == [200] * 20


@pytest.mark.parametrize("parts", [(b'"aaa"',), (b'"', b"a", b"aa", b'"')])
async def test_an_answer_is_taken_whole(parts: tuple[bytes, ...]) -> None:
    async def one_by_one() -> AsyncGenerator[bytes]:
        for part in parts:
            yield part

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["body"] == b"{}"
        headers = {"x-request-id": "r-7", "retry-after": "3"}
        await StreamingResponse(one_by_one(), headers=headers)(scope, receive, send)

    answer = await exchange(application, "/v1/completions", b"{}")
    assert answer == Answer(200, "r-7", b'"aaa"', 3.0)
