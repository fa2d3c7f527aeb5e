"""The asyncio client against a scripted engine on a real socket. A refusal is one value, and
whoever keeps it ties no frames into a cycle."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq
import zmq.asyncio

from engine_core.client import trace_client
from engine_core.client.engine_client import CircuitBreaker, EngineClient
from engine_core.client.pending_jobs import GenerateStream, Outcome
from engine_core.client.trace_client import trace_engines
from engine_core.messages import (
    Abort,
    Accepted,
    EncodedRows,
    EncodeJob,
    EndRow,
    EngineInfo,
    Failed,
    GenerateJob,
    Hello,
    JobOptions,
    KeyShare,
    Outputs,
    RowOutput,
    SamplingParams,
    ToCore,
    TracedStep,
    TracedSteps,
)
from engine_core.refusal import ErrorCode, RefusalError
from workers.contract.config import Task

INFO = EngineInfo("generate", 64, 50, 2, {"states": 2}, 0, 0)


class Script:
    """The engine's end of the socket, in the hands of the test."""

    def __init__(self, socket: zmq.asyncio.Socket) -> None:
        self._socket = socket
        self._client = b""
        self._decoder = msgspec.msgpack.Decoder(list[ToCore])
        self._received: list[ToCore] = []

    async def receive(self) -> ToCore:
        while not self._received:
            self._client, frame = await self._socket.recv_multipart()
            self._received = self._decoder.decode(frame)
        return self._received.pop(0)

    async def job(self) -> GenerateJob | EncodeJob:
        message = await self.receive()
        assert isinstance(message, GenerateJob | EncodeJob)
        return message

    async def send(self, message: msgspec.Struct) -> None:
        await self._socket.send_multipart([self._client, msgspec.msgpack.encode(message)])


@asynccontextmanager
async def connected(
    folder: Path, task: Task = INFO.task
) -> AsyncGenerator[tuple[EngineClient, Script]]:
    endpoint = f"ipc://{folder}/engine"
    with zmq.asyncio.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        socket.bind(endpoint)
        client, script = EngineClient(endpoint), Script(socket)
        client.start()
        assert isinstance(await script.receive(), Hello)
        info = msgspec.structs.replace(INFO, task=task)
        await script.send(info)
        assert await client.wait_ready() == info
        yield client, script
        client.close()


def int32(values: Iterable[int]) -> bytes:
    return np.array([*values], np.int32).tobytes()


async def streaming(client: EngineClient, script: Script) -> tuple[int, GenerateStream]:
    """A job of two rows that is accepted, and its stream."""
    call = asyncio.create_task(client.generate(SamplingParams(), texts=["a"], n=2))
    job = (await script.job()).id
    await script.send(Outputs(accepted=[Accepted(job, [3], [b"ids"])]))
    return job, await call


async def test_a_stream_gives_news_in_order_and_ends(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, script):
        job, stream = await streaming(client, script)
        assert (stream.answer.prompt_tokens, stream.answer.prompt_ids) == ([3], [b"ids"])
        news = [RowOutput(job, 0, 5), RowOutput(job, 1, 6, "stop"), RowOutput(job, 0, 7, "length")]
        for rows in (news[:1], news[1:2], news[2:]):
            assert not stream.ended
            await script.send(Outputs(rows=rows))
            assert await stream.next() == rows
        assert stream.ended
        assert await stream.next() == []


async def test_a_row_ended_here_is_told_once_and_its_news_dropped(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, script):
        job, stream = await streaming(client, script)
        stream.end_row(0)
        stream.end_row(0)
        assert await script.receive() == EndRow(job, 0)
        await script.send(Outputs(rows=[RowOutput(job, 0, 4), RowOutput(job, 1, 5)]))
        assert [row.row for row in await stream.next()] == [1]
        stream.abort()
        stream.abort()
        assert await script.receive() == Abort([job])
        assert stream.ended


async def refusal_of(asked: Awaitable[object]) -> RefusalError:
    with pytest.raises(RefusalError) as raised:
        await asked
    return raised.value


async def test_a_failure_comes_after_the_news_before_it(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, script):
        job, stream = await streaming(client, script)
        news = [RowOutput(job, 0, 4)]
        await script.send(Outputs(rows=news, failed=[Failed(job, "row_failed", "not finite")]))
        assert await stream.next() == news
        assert (await refusal_of(stream.next())).code == "row_failed"
        assert not client.dead


async def refused(client: EngineClient, priority: int = 0) -> RefusalError:
    return await refusal_of(client.encode(ids=[b"1234"], options=JobOptions(priority=priority)))


async def test_a_full_queue_is_asked_by_one_job_at_a_time(tmp_path: Path) -> None:
    """What it would refuse is refused here; what would begin earlier is not held up."""
    async with connected(tmp_path) as (client, script):
        now = 0.0
        client.breakers[0] = CircuitBreaker(lambda: now)
        call = asyncio.create_task(refused(client))
        job = await script.job()
        await script.send(Outputs(failed=[Failed(job.id, "overloaded", "full", None, 3.5)]))
        assert (await call).retry_after == 3.5
        for priority in (0, 0, 1):
            error = await refused(client, priority)
            assert (error.code, error.message, error.retry_after) == ("overloaded", "full", 3.5)
        urgent = asyncio.create_task(client.encode(ids=[b"1234"], options=JobOptions(priority=-1)))
        message = await script.job()
        assert message.priority == -1
        other = JobOptions(key=KeyShare(2))
        another = asyncio.create_task(client.encode(ids=[b"1234"], options=other))
        assert (await script.job()).key.number == 2, "what is known is of one key"
        now = 0.2
        asking = asyncio.create_task(client.encode(ids=[b"1234"]))
        job = await script.job()
        assert (await refused(client)).retry_after == 3.5
        vector = EncodedRows(job.id, bytes(4), bytes(8), lens=int32([1]))
        await script.send(Outputs(accepted=[Accepted(job.id)], encoded=[vector]))
        await asking
        last = asyncio.create_task(client.encode(ids=[b"1234"]))
        assert (await script.job()).id > job.id
        client.close()
        await asyncio.gather(urgent, another, last, return_exceptions=True)


def test_a_queue_is_asked_again_after_a_moment_even_if_no_answer_comes() -> None:
    """An hour later no job is refused because another has not been answered yet."""
    now = 0.0
    queue = CircuitBreaker(lambda: now)
    queue.refused(0, RefusalError("overloaded", "full", retry_after=31.0))
    now = 0.51
    assert not queue.probe(0)
    assert not queue.probe(0)
    now = 0.0
    queue.refused(0, RefusalError("overloaded", "full", retry_after=0.4))
    for moment in (0.021, 0.042):
        with pytest.raises(RefusalError):
            queue.probe(0)
        now = moment
        assert queue.probe(0)
    queue.accepted()
    assert not queue.probe(0)


@pytest.mark.parametrize(
    ("code", "param", "dead"), [("invalid_request", "input[1]", False), ("engine_dead", None, True)]
)
async def test_a_refusal_is_raised_with_its_field(
    tmp_path: Path, code: ErrorCode, param: str | None, dead: bool
) -> None:
    """The last words of an engine mark it dead."""
    async with connected(tmp_path) as (client, script):
        call = asyncio.create_task(client.encode(texts=["a", "b"]))
        job = await script.job()
        await script.send(Outputs(failed=[Failed(job.id, code, "empty", param)]))
        error = await refusal_of(call)
        assert (error.code, error.param) == (code, param)
        assert client.dead == dead


async def test_a_cancelled_call_is_aborted_in_the_engine(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, script):
        for call in (client.encode(texts=["a"]), client.generate(SamplingParams(), texts=["a"])):
            task = asyncio.create_task(call)
            job = await script.job()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await script.receive() == Abort([job.id])


async def test_after_the_end_of_all_jobs_there_are_no_new_ones(tmp_path: Path) -> None:
    """A request may still have been preparing its job then."""
    async with connected(tmp_path) as (client, script):
        call = asyncio.create_task(client.encode(texts=["a"]))
        job = await script.job()
        client.abort_all(RefusalError("draining", "shutting down"))
        for asked in (call, client.generate(SamplingParams(), texts=["a"])):
            assert (await refusal_of(asked)).code == "draining"
        assert await script.receive() == Abort([job.id])


async def test_an_engine_that_goes_fails_every_job_at_once(tmp_path: Path) -> None:
    """As the kernel does for a process that is killed, its end of the socket is closed."""
    with zmq.asyncio.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.bind(f"ipc://{tmp_path}/engine")
        client = EngineClient(f"ipc://{tmp_path}/engine")
        client.start()
        call = asyncio.create_task(client.generate(SamplingParams(), texts=["a"]))
        for _ in range(2):
            await socket.recv_multipart()
        socket.close(0)
        for asked in (call, client.generate(SamplingParams(), texts=["a"]), client.wait_ready()):
            assert (await refusal_of(asked)).code == "engine_dead"
        assert client.dead
        client.close()


async def test_an_engine_that_returns_fails_what_it_had_and_takes_what_is_new(
    tmp_path: Path,
) -> None:
    """The next one hears nothing of what was meant for the one before."""
    endpoint = f"ipc://{tmp_path}/engine"
    with zmq.asyncio.Context() as context:
        first = context.socket(zmq.ROUTER)
        first.bind(endpoint)
        client = EngineClient(endpoint, returns=True)
        client.start()
        call = asyncio.create_task(client.generate(SamplingParams(), texts=["a"]))
        decoder, heard = msgspec.msgpack.Decoder(list[ToCore]), 0
        while heard < 2:
            heard += len(decoder.decode((await first.recv_multipart())[1]))
        first.close(0)
        assert (await refusal_of(call)).code == "engine_dead"
        assert not client.dead
        assert not client.is_ready
        later = asyncio.create_task(client.generate(SamplingParams(), texts=["b"]))
        with context.socket(zmq.ROUTER) as second:
            second.bind(endpoint)
            received: list[ToCore] = []
            while len(received) < 2:
                received += decoder.decode((await second.recv_multipart())[1])
            later.cancel()
        client.close()
    hello, job = received
    assert isinstance(hello, Hello)
    assert isinstance(job, GenerateJob)
    assert job.texts == ["b"]


def test_an_interrupt_of_a_trace_before_all_is_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket that is open then does not hold the end up."""

    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(msgspec.msgpack, "encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trace_engines({"model": f"ipc://{tmp_path}/engine"}, 60)


def test_the_trace_of_an_engine_that_ends_has_the_steps_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_client, "_ANSWER_SECONDS", 0.5)
    endpoint = f"ipc://{tmp_path}/engine"
    step = msgspec.convert([3, 1, 1, 0, 1, True, [[time.monotonic_ns()] * 6]], TracedStep)

    def answer_once() -> None:
        with zmq.Context() as context, context.socket(zmq.ROUTER) as engine:
            engine.bind(endpoint)
            name, _ = engine.recv_multipart()
            answer = TracedSteps(steps=[step], over=False)
            engine.send_multipart([name, msgspec.msgpack.encode(answer)])
            engine.close(linger=1000)

    engine = threading.Thread(target=answer_once)
    engine.start()
    assert trace_engines({"model": endpoint}, 60) == {"model": [step]}
    engine.join()


FIELDS = ("overloaded", "the queue is full", "prompt[1]", 2.5)

Ask = Callable[[], Awaitable[object] | None]


class Texts:
    """What a request holds while it waits."""


def of_an_outcome() -> Ask:
    outcome: Outcome[None] = Outcome()
    outcome.set(RefusalError(*FIELDS))
    return lambda: outcome


def of_a_stream() -> Ask:
    stream = GenerateStream(1, 1, lambda _: None, lambda _: None)
    stream.fail(RefusalError(*FIELDS))
    return stream.next


def of_a_breaker() -> Ask:
    breaker = CircuitBreaker(lambda: 0.0)
    breaker.refused(0, RefusalError(*FIELDS))
    return lambda: breaker.check(0)


def of_a_client() -> Ask:
    client = EngineClient("ipc://nowhere")
    client.abort_all(RefusalError(*FIELDS))
    return lambda: client.generate(SamplingParams(), texts=["a"])


@pytest.mark.parametrize("keeper", [of_an_outcome, of_a_stream, of_a_breaker, of_a_client])
async def test_a_refusal_that_is_kept_is_raised_without_the_frames_of_others(
    keeper: Callable[[], Ask],
) -> None:
    ask = keeper()
    texts_of_each: list[weakref.ref[Texts]] = []

    async def request() -> None:
        texts = Texts()
        texts_of_each.append(weakref.ref(texts))
        with suppress(RefusalError):
            if (answer := ask()) is not None:
                await answer
            pytest.fail("it is refused")

    gc.disable()
    try:
        for _ in range(2):
            await request()
        assert [texts() for texts in texts_of_each] == [None, None]
    finally:
        gc.enable()
