"""A load over HTTP: requests are sent, then their answers are read and checked.

Requests leave all at once, a number in flight, or each at its time. Several clients divide a load:
the first is this process, each other one `python -P -m server.bench.load`, whose standard input is
a socket to this one.
"""

import asyncio
import gc
import os
import signal
import socket
import sys
import time
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import pairwise, zip_longest
from typing import TypeVar

import msgspec
import uvloop

from server.batches.http_client import Address, Answer, HTTPClient
from server.bench.measurement import BenchError, Figures, milliseconds
from server.bench.workloads import HTTPCase, HTTPEmbeddingCase, HTTPGenerationCase
from server.event_loop import ChildProcess, first_error
from server.settings.settings import child_environment

_OK = 200
_CHUNK_MARK = b'"text":'
_DATA, _DONE = b"data: ", b"data: [DONE]"
_SHOWN = 200
_MOST_SPECIAL = 2
"""Special tokens that a server may put around a text."""
_COMMAND = (sys.executable, "-P", "-m", "server.bench.load")
_LONGEST_LINE = 1 << 30
_SAY_SECONDS = 0.5
_STDIN = 0

_KindT = TypeVar("_KindT", bound=msgspec.Struct)


class WrongAnswerError(Exception):
    """An answer is not the requested one. The message is one line."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A good answer. Times in seconds from the request; `arrivals` has one for each piece of a
    stream's text."""

    latency: float
    arrivals: list[float] = []
    sequences: int = 1
    prompt_tokens: int
    output_tokens: int = 0

    @property
    def time_per_token(self) -> float:
        """Seconds for each token after the first piece of text."""
        return (self.arrivals[-1] - self.arrivals[0]) / (self.output_tokens - 1)

    def gaps(self) -> list[float]:
        """Seconds between the pieces of a stream."""
        return [later - earlier for earlier, later in pairwise(self.arrivals)]


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw] = []
    usage: _Usage | None = None
    error: msgspec.Raw | None = None


class _Vectors(msgspec.Struct):
    data: list[msgspec.Raw]
    usage: _Usage


def outcome_of(answer: Answer, case: HTTPCase) -> Outcome:
    """Read and check an answer of `case`. Raises WrongAnswerError."""
    return _vectors(answer, case) if isinstance(case, HTTPEmbeddingCase) else _stream(answer, case)


def _vectors(answer: Answer, case: HTTPEmbeddingCase) -> Outcome:
    vectors = _decoded(_body(answer), _Vectors)
    if len(vectors.data) != case.texts:
        raise WrongAnswerError(f"{len(vectors.data)} vectors for {case.texts} texts")
    _check_prompt(vectors.usage.prompt_tokens, case.texts, case.tokens)
    return Outcome(
        latency=answer.ended - answer.sent,
        sequences=case.texts,
        prompt_tokens=vectors.usage.prompt_tokens,
    )


def _stream(answer: Answer, case: HTTPGenerationCase) -> Outcome:
    usage = None
    for chunk in _chunks(_body(answer)):
        if chunk.error is not None:
            raise WrongAnswerError(f"an error within the stream: {bytes(chunk.error).decode()}")
        usage = chunk.usage or usage
    if usage is None:
        raise WrongAnswerError("a stream without usage")
    if usage.completion_tokens != case.outputs:
        raise WrongAnswerError(f"{usage.completion_tokens} tokens instead of {case.outputs}")
    _check_prompt(usage.prompt_tokens, 1, case.prompt_tokens)
    arrivals = [at - answer.sent for at, data in answer.pieces if _CHUNK_MARK in data]
    if not arrivals:
        raise WrongAnswerError("a stream without text")
    return Outcome(
        latency=arrivals[-1],
        arrivals=arrivals,
        prompt_tokens=usage.prompt_tokens,
        output_tokens=case.outputs,
    )


def _check_prompt(counted: int, texts: int, tokens: int) -> None:
    if not texts * tokens <= counted <= texts * (tokens + _MOST_SPECIAL):
        raise WrongAnswerError(
            f"the server counts {counted} tokens in {texts} x {tokens}: --tokenizer must be its own"
        )


def _body(answer: Answer) -> bytes:
    if answer.status != _OK:
        text = answer.body[:_SHOWN].decode("utf-8", "replace")
        raise WrongAnswerError(f"status {answer.status}: {text}")
    return answer.body


def _chunks(body: bytes) -> Iterator[_Chunk]:
    """The events of a stream. Raises WrongAnswerError if it is cut short."""
    *events, rest = body.split(b"\n\n")
    if rest or not events or events[-1] != _DONE:
        raise WrongAnswerError("the stream ends without data: [DONE]")
    for event in events[:-1]:
        yield _decoded(event.removeprefix(_DATA), _Chunk)


def _decoded(data: bytes, kind: type[_KindT]) -> _KindT:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        shown = data[:_SHOWN].decode("utf-8", "replace")
        raise WrongAnswerError(f"an answer that cannot be read ({error}): {shown}") from None


class ClientLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One client's requests of a run of `case`, of which `in_flight` are unanswered at any time.

    With `departures`, each request leaves at its own time instead, in seconds from the start,
    whether or not earlier ones are answered. `in_flight` is then the number of requests.
    """

    address: Address
    case: HTTPCase
    requests: list[bytes]
    in_flight: int
    departures: list[float] = []

    def divided(self, clients: int) -> list["ClientLoad"]:
        """Deal the requests out to so many clients, at most one for each request in flight."""
        clients = min(clients, self.in_flight)
        return [
            msgspec.structs.replace(
                self,
                requests=self.requests[each::clients],
                in_flight=len(range(each, self.in_flight, clients)),
                departures=self.departures[each::clients],
            )
            for each in range(clients)
        ]


class ClientResult(msgspec.Struct, frozen=True, kw_only=True):
    """The good answers to one client, and how often each error occurred.

    `started` and `ended` are seconds of the clock that all processes share. `late` says how many
    seconds after its departure each request left.
    """

    started: float
    ended: float
    cpu_seconds: float
    outcomes: list[Outcome]
    errors: dict[str, int]
    late: list[float]


class Load:
    """One run of one client's load."""

    def __init__(self, load: ClientLoad) -> None:
        self._load = load
        self._client = HTTPClient(load.address)
        self._answers: list[Answer] = []
        self._errors: Counter[str] = Counter()
        self._late: list[float] = []

    def done(self) -> int:
        """Requests answered so far, well or not."""
        return len(self._answers) + self._errors.total()

    async def connect(self) -> None:
        """Open the connections of all requests in flight, ahead of need. Raises OSError."""
        if not self._load.departures:
            await self._client.open(min(self._load.in_flight, len(self._load.requests)))

    def close(self) -> None:
        self._client.close()

    async def run(self) -> ClientResult:
        """Send all requests, then read the answers: reading earlier would delay later ones."""
        waiting = zip_longest(self._load.requests, self._load.departures)

        async def one_after_another() -> None:
            # Shared: whoever is free takes the next.
            for request, departure in waiting:
                if departure is not None:
                    await asyncio.sleep(started + departure - time.perf_counter())
                    self._late.append(time.perf_counter() - started - departure)
                await self._exchange(request)

        with _no_garbage_collection():
            cpu, started = time.process_time(), time.perf_counter()
            await asyncio.gather(*[one_after_another() for _ in range(self._load.in_flight)])
            ended, cpu = time.perf_counter(), time.process_time() - cpu
        return ClientResult(
            started=started,
            ended=ended,
            cpu_seconds=cpu,
            outcomes=self._outcomes(),
            errors=dict(self._errors),
            late=self._late,
        )

    async def _exchange(self, request: bytes) -> None:
        try:
            self._answers.append(await self._client.exchange(request))
        except OSError as error:
            self._errors[str(error) or type(error).__name__] += 1

    def _outcomes(self) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for answer in self._answers:
            try:
                outcomes.append(outcome_of(answer, self._load.case))
            except WrongAnswerError as error:
                self._errors[str(error)] += 1
        return outcomes


@contextmanager
def _no_garbage_collection() -> Generator[None]:
    """Disable the collector in the block: it would stop the clock, and a load has no cycles."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def figures_of(results: Sequence[ClientResult]) -> Figures:
    """Rates and times of the good answers to all clients, in ms from the request.

    A piece of a stream may hold several tokens. `client_cpu_share` is the busiest client's share of
    a core.
    """
    outcomes = [outcome for result in results for outcome in result.outcomes]
    seconds = max(each.ended for each in results) - min(each.started for each in results)
    counts = {
        "requests": len(outcomes),
        "sequences": sum(outcome.sequences for outcome in outcomes),
        "prompt_tokens": sum(outcome.prompt_tokens for outcome in outcomes),
        "output_tokens": sum(outcome.output_tokens for outcome in outcomes),
    }
    streams = [outcome for outcome in outcomes if outcome.arrivals]
    return {
        "seconds": seconds,
        "errors": sum(sum(result.errors.values()) for result in results),
        **counts,
        **{f"{name}_per_s": count / seconds for name, count in counts.items()},
        "clients": len(results),
        "client_cpu_share": max(each.cpu_seconds / (each.ended - each.started) for each in results),
        **milliseconds("latency", [outcome.latency for outcome in outcomes]),
        **milliseconds("ttft", [stream.arrivals[0] for stream in streams]),
        **milliseconds("tpot", [s.time_per_token for s in streams if s.output_tokens > 1]),
        **milliseconds("itl", [gap for stream in streams for gap in stream.gaps()]),
        **milliseconds("late", [late for result in results for late in result.late]),
    }


class ClientState(msgspec.Struct, frozen=True, kw_only=True):
    """A message from a client's process, a line of JSON.

    The first says that it is connected, or why not. Then `done` follows twice a second, and at the
    end the result. The process reads its load, and an empty line at which it begins.
    """

    cannot_connect: str | None = None
    done: int = 0
    result: ClientResult | None = None


_DECODER = msgspec.json.Decoder(ClientState)


class Clients:
    """All clients of one run, connected."""

    def __init__(self, clients: Sequence["Load | _Process"]) -> None:
        self._clients = clients

    def done(self) -> int:
        return sum(client.done() for client in self._clients)

    async def run(self) -> list[ClientResult]:
        """Begin at once and wait for all. Raises BenchError if a client's process ends."""
        with first_error(BenchError):
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(client.run()) for client in self._clients]
        return [each.result() for each in running]


@asynccontextmanager
async def connected_clients(load: ClientLoad, count: int) -> AsyncGenerator[Clients]:
    """Divide `load` among up to `count` clients, which stay connected until the block ends.

    Raises BenchError if one of them cannot connect.
    """
    mine, *theirs = load.divided(count)
    own = Load(mine)
    async with AsyncExitStack() as running:
        running.callback(own.close)
        clients = [own, *[await running.enter_async_context(_process(each)) for each in theirs]]
        try:
            # All have ended when one has failed: what they have opened is closed with the block.
            with first_error(OSError, BenchError):
                async with asyncio.TaskGroup() as group:
                    for client in clients:
                        group.create_task(client.connect())
        except OSError as error:
            raise BenchError(f"cannot connect: {error}") from None
        yield Clients(clients)


@asynccontextmanager
async def _process(load: ClientLoad) -> AsyncGenerator["_Process"]:
    """A client's process that has its load, until the block ends. Raises BenchError."""
    try:
        child = ChildProcess(_COMMAND, child_environment(), answers=True)
    except OSError as error:
        raise BenchError(f"a client's process cannot be started: {error.strerror}") from None
    reader, writer = await asyncio.open_connection(sock=child.socket, limit=_LONGEST_LINE)
    try:
        writer.write(msgspec.json.encode(load) + b"\n")
        yield _Process(reader, writer)
    finally:
        child.signal(signal.SIGKILL)
        await child.exit
        writer.close()


class _Process:
    """Another process that is one of the clients."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._done = 0
        self._reader, self._writer = reader, writer

    def done(self) -> int:
        return self._done

    async def connect(self) -> None:
        """Wait until its connections are open. Raises OSError, or BenchError if it ends."""
        if (reason := (await self._next()).cannot_connect) is not None:
            raise OSError(reason)

    async def run(self) -> ClientResult:
        """Raises BenchError if it ends before its load does."""
        self._writer.write(b"\n")
        while (result := (state := await self._next()).result) is None:
            self._done = state.done
        return result

    async def _next(self) -> ClientState:
        try:
            return _DECODER.decode(await self._reader.readuntil(b"\n"))
        except (EOFError, ConnectionError):
            raise BenchError("a client's process has ended") from None


async def _serve() -> None:
    """Read a load, connect, and run it once the other clients are connected too."""
    parent = socket.socket(fileno=_STDIN)
    reader, writer = await asyncio.open_connection(sock=parent, limit=_LONGEST_LINE)

    def say(state: ClientState) -> None:
        writer.write(msgspec.json.encode(state) + b"\n")

    load = Load(msgspec.json.decode(await reader.readline(), type=ClientLoad))
    try:
        await load.connect()
    except OSError as error:
        say(ClientState(cannot_connect=str(error)))
        await writer.drain()
        return
    say(ClientState())
    await reader.readline()
    # Whoever started this process ends before the load does: nobody wants the result.
    watching = asyncio.create_task(_exit_at_end_of(reader))
    running = asyncio.create_task(load.run())
    while not (await asyncio.wait([running], timeout=_SAY_SECONDS))[0]:
        say(ClientState(done=load.done()))
    say(ClientState(result=running.result()))
    await writer.drain()
    await watching


async def _exit_at_end_of(reader: StreamReader) -> None:
    await reader.read()
    os._exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(_serve())
