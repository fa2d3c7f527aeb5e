"""A load over HTTP: requests are sent, then their answers are read and checked.

Several clients divide a load. The first is this process, each other one
`python -P -m server.bench.load`, whose standard input and output are a socket to this one.
"""

import asyncio
import gc
import signal
import sys
import time
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise, zip_longest
from typing import TypeVar

import msgspec
import uvloop

from server.batches import answering
from server.batches.http_client import Address, Answer, HTTPClient
from server.bench.measurement import BenchError, Figures, milliseconds, rates
from server.bench.workloads import HTTPCase, HTTPEmbeddingCase, HTTPGenerationCase
from server.event_loop import ChildProcess
from server.settings.settings import child_environment
from workers.contract.process import exit_with_parent

_OK = 200
_CHUNK_MARK = b'"text":'
_DATA, _DONE = b"data: ", b"data: [DONE]"
_SHOWN = 200
_MOST_SPECIAL = 2
"""Special tokens that a server may put around a text."""
_COMMAND = (sys.executable, "-P", "-m", "server.bench.load")
_LONGEST_LINE = 1 << 30
_SAY_SECONDS = 0.5

KindT = TypeVar("KindT", bound=msgspec.Struct)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A good answer. Times are in seconds from the request; a stream's pieces have `arrivals`."""

    latency: float
    arrivals: list[float] = []
    sequences: int = 1
    prompt_tokens: int
    output_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw] = []
    usage: _Usage | None = None
    error: object = None


class _Vectors(msgspec.Struct):
    data: list[msgspec.Raw]
    usage: _Usage


def outcome_of(answer: Answer, case: HTTPCase) -> Outcome:
    """Read and check an answer of `case`. Raises BenchError."""
    check_status(answer)
    return _vectors(answer, case) if isinstance(case, HTTPEmbeddingCase) else _stream(answer, case)


def check_status(answer: Answer) -> None:
    """Raises BenchError, with the server's reason, unless the answer is a success."""
    if answer.status != _OK:
        refused = answering.Answer(answer.status, answer.request_id, answer.body)
        raise BenchError(answering.error_of(refused).message)


def _vectors(answer: Answer, case: HTTPEmbeddingCase) -> Outcome:
    vectors = decoded(answer.body, _Vectors)
    if len(vectors.data) != case.texts:
        raise BenchError(f"{len(vectors.data)} vectors for {case.texts} texts")
    _check_prompt(vectors.usage.prompt_tokens, case.texts, case.tokens)
    return Outcome(
        latency=answer.ended - answer.sent,
        sequences=case.texts,
        prompt_tokens=vectors.usage.prompt_tokens,
    )


def _stream(answer: Answer, case: HTTPGenerationCase) -> Outcome:
    usage = None
    *events, rest = answer.body.split(b"\n\n")
    if rest or not events or events[-1] != _DONE:
        raise BenchError("the stream ends without data: [DONE]")
    for event in events[:-1]:
        chunk = decoded(event.removeprefix(_DATA), _Chunk)
        if chunk.error is not None:
            raise BenchError(f"an error within the stream: {chunk.error}")
        usage = chunk.usage or usage
    if usage is None:
        raise BenchError("a stream without usage")
    if usage.completion_tokens != case.outputs:
        raise BenchError(f"{usage.completion_tokens} tokens instead of {case.outputs}")
    _check_prompt(usage.prompt_tokens, 1, case.prompt_tokens)
    arrivals = [at - answer.sent for at, data in answer.pieces if _CHUNK_MARK in data]
    if not arrivals:
        raise BenchError("a stream without text")
    return Outcome(
        latency=arrivals[-1],
        arrivals=arrivals,
        prompt_tokens=usage.prompt_tokens,
        output_tokens=case.outputs,
    )


def _check_prompt(counted: int, texts: int, tokens: int) -> None:
    if not texts * tokens <= counted <= texts * (tokens + _MOST_SPECIAL):
        raise BenchError(
            f"the server counts {counted} tokens in {texts} x {tokens}; "
            "a --tokenizer must be its own"
        )


def decoded(data: bytes, kind: type[KindT]) -> KindT:
    """Raises BenchError."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        shown = data[:_SHOWN].decode("utf-8", "replace")
        raise BenchError(f"an answer that cannot be read ({error}): {shown}") from None


class ClientLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One client's requests of a run of `case`, of which `in_flight` are unanswered at any time.

    With `departures`, each leaves at its own time, in seconds from the start, and all may be in
    flight.
    """

    address: Address
    case: HTTPCase
    requests: list[bytes]
    in_flight: int
    departures: list[float] = []

    def divided(self, clients: int) -> list["ClientLoad"]:
        """Deal the requests out to clients, at most one for each in flight."""
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
    """The good answers to one client, and how often each error occurred. Times are in seconds;
    `late` is how much after its departure each request left."""

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
        self.client = HTTPClient(load.address)
        self._answers: list[Answer] = []
        self._errors: Counter[str] = Counter()
        self._late: list[float] = []

    @property
    def done(self) -> int:
        return len(self._answers) + self._errors.total()

    async def connect(self) -> None:
        if not self._load.departures:
            await self.client.open(self._load.in_flight)

    async def run(self) -> ClientResult:
        """Send all requests, then read the answers: reading earlier would delay later ones."""
        waiting = zip_longest(self._load.requests, self._load.departures)

        async def one_after_another() -> None:
            # Shared: whoever is free takes the next.
            for request, departure in waiting:
                if departure is not None:
                    await asyncio.sleep(started + departure - time.perf_counter())
                    self._late.append(time.perf_counter() - started - departure)
                try:
                    self._answers.append(await self.client.exchange(request))
                except OSError as error:
                    self._errors[str(error) or type(error).__name__] += 1

        # The collector would stop the clock, and a load has no cycles.
        gc.collect()
        gc.disable()
        try:
            cpu, started = time.process_time(), time.perf_counter()
            await asyncio.gather(*[one_after_another() for _ in range(self._load.in_flight)])
            ended, cpu = time.perf_counter(), time.process_time() - cpu
        finally:
            gc.enable()
        return ClientResult(
            started=started,
            ended=ended,
            cpu_seconds=cpu,
            outcomes=self._outcomes(),
            errors=dict(self._errors),
            late=self._late,
        )

    def _outcomes(self) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for answer in self._answers:
            try:
                outcomes.append(outcome_of(answer, self._load.case))
            except BenchError as error:
                self._errors[str(error)] += 1
        return outcomes


def figures_of(results: Sequence[ClientResult]) -> Figures:
    """Rates of the good answers to all clients, and times in ms from the request.

    `tpot` is the time for each token after the first piece of text, `itl` that between two pieces.
    `client_cpu_share` is the busiest client's share of a core.
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
    per_token = [
        (stream.arrivals[-1] - stream.arrivals[0]) / (stream.output_tokens - 1)
        for stream in streams
        if stream.output_tokens > 1
    ]
    gaps = [after - before for stream in streams for before, after in pairwise(stream.arrivals)]
    return {
        "seconds": seconds,
        "errors": sum(sum(result.errors.values()) for result in results),
        **rates(counts, seconds),
        "clients": len(results),
        "client_cpu_share": max(each.cpu_seconds / (each.ended - each.started) for each in results),
        **milliseconds("latency", [outcome.latency for outcome in outcomes]),
        **milliseconds("ttft", [stream.arrivals[0] for stream in streams]),
        **milliseconds("tpot", per_token),
        **milliseconds("itl", gaps),
        **milliseconds("late", [late for result in results for late in result.late]),
    }


@asynccontextmanager
async def connected_clients(
    load: ClientLoad, count: int
) -> AsyncGenerator[Sequence["Load | ClientProcess"]]:
    """Divide `load` among up to `count` clients, connected until the block ends. Raises BenchError
    if the process of one ends."""
    mine, *theirs = load.divided(count)
    own = Load(mine)
    async with AsyncExitStack() as running:
        running.callback(own.client.close)
        clients = [own, *[await running.enter_async_context(_process(each)) for each in theirs]]
        for client in clients:
            await client.connect()
        yield clients


@asynccontextmanager
async def _process(load: ClientLoad) -> AsyncGenerator["ClientProcess"]:
    """A client's process that has its load, until the block ends."""
    child = ChildProcess(_COMMAND, child_environment(), answers=True)
    reader, writer = await asyncio.open_connection(sock=child.socket, limit=_LONGEST_LINE)
    try:
        writer.write(msgspec.json.encode(load) + b"\n")
        yield ClientProcess(reader, writer)
    finally:
        child.signal(signal.SIGKILL)
        await child.exit
        writer.close()


class ClientProcess:
    """Another process that is one of the clients. Methods raise BenchError if it ends early.

    The process reads its load, and an empty line at which it begins. Its messages are lines of
    JSON: 0 once it is connected, then twice a second how many requests are done, and its result.
    """

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.done = 0
        self._reader, self._writer = reader, writer

    async def connect(self) -> None:
        await self._next()

    async def run(self) -> ClientResult:
        self._writer.write(b"\n")
        while isinstance(message := await self._next(), int):
            self.done = message
        return message

    async def _next(self) -> int | ClientResult:
        try:
            line = await self._reader.readuntil(b"\n")
        except (EOFError, ConnectionError):
            raise BenchError("a client's process has ended") from None
        return msgspec.json.decode(line, type=int | ClientResult)


async def _serve(load: Load) -> None:
    """Connect, and run the load once the other clients are connected too."""
    await load.connect()
    _say(0)
    sys.stdin.readline()
    exit_with_parent()
    running = asyncio.create_task(load.run())
    while not (await asyncio.wait([running], timeout=_SAY_SECONDS))[0]:
        _say(load.done)
    _say(running.result())


def _say(message: int | ClientResult) -> None:
    print(msgspec.json.encode(message).decode(), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(_serve(Load(msgspec.json.decode(sys.stdin.readline(), type=ClientLoad))))
