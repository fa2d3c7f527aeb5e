"""Sends one client's requests to a server: all at once, a number in flight, or each at its time."""

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager

import msgspec

from server.bench.cases.workloads import HTTPCase
from server.bench.load.http_answers import Outcome, WrongAnswerError, outcome_of
from server.bench.load.http_client import Address, Answer, HTTPClient
from server.bench.results.measurement import Figures, milliseconds


class ClientLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What one client sends of a run of `case`: `in_flight` of its requests at once, each followed
    by the next as soon as its answer is complete. Where there are `departures`, each request leaves
    at its own instead, in seconds from the start, whether or not earlier ones are answered.
    """

    address: Address
    case: HTTPCase
    requests: list[bytes]
    in_flight: int
    departures: list[float] = []

    def divided(self, clients: int) -> list["ClientLoad"]:
        """The same by so many clients: each has every CLIENTS-th request, and its share in flight.
        There are fewer clients where there are fewer in flight."""
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
    """What one client saw: the good answers, and how often each error occurred. `started` and
    `ended` are seconds of the clock that all processes share, `late` how late each request left."""

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
        """Close the connections."""
        self._client.close()

    async def run(self) -> ClientResult:
        """Send all requests; answers are looked at only when the last one is there, because that
        takes time in which the others would wait to be received."""
        with _no_garbage_collection():
            cpu, started = time.process_time(), time.perf_counter()
            jobs = self._at_their_times(started) if self._load.departures else self._in_flight()
            await asyncio.gather(*jobs)
            ended, cpu = time.perf_counter(), time.process_time() - cpu
        return ClientResult(
            started=started,
            ended=ended,
            cpu_seconds=cpu,
            outcomes=self._outcomes(),
            errors=dict(self._errors),
            late=self._late,
        )

    def _in_flight(self) -> Iterable[Coroutine[object, object, None]]:
        waiting = iter(self._load.requests)

        async def one_after_another() -> None:
            # Shared: whoever is free takes the next.
            for request in waiting:
                await self._exchange(request)

        return [one_after_another() for _ in range(self._load.in_flight)]

    def _at_their_times(self, start: float) -> Iterable[Coroutine[object, object, None]]:
        async def leave(request: bytes, at: float) -> None:
            await asyncio.sleep(start + at - time.perf_counter())
            self._late.append(time.perf_counter() - start - at)
            await self._exchange(request)

        return map(leave, self._load.requests, self._load.departures)

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
    """What a load keeps has no cycles, and looking for some would stop the client's clock."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def figures_of(results: Sequence[ClientResult]) -> Figures:
    """Rates and times of the good answers to all clients, in ms from the request (a piece of a
    stream may hold several tokens); how late requests left, and the busiest client's share of a
    core."""
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
