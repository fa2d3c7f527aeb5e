"""Sends requests to a server: all at once, a number in flight, or a number a second."""

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine, Sequence

from server.bench.load.http_answers import Outcome, Reader, WrongAnswerError
from server.bench.load.http_client import HTTPClient
from server.bench.results.measurement import Figures, milliseconds


class Load:
    """One run of one case: the good answers, and how often each error occurred."""

    def __init__(self, client: HTTPClient, requests: Sequence[bytes], read: Reader) -> None:
        self.total = len(requests)
        self.errors: Counter[str] = Counter()
        self._client, self._requests, self._read = client, requests, read
        self._outcomes: list[Outcome] = []
        self._late: list[float] = []
        self._seconds = self._cpu = 0.0

    def done(self) -> int:
        """Requests answered so far, well or not."""
        return len(self._outcomes) + self.errors.total()

    async def in_flight(self, count: int) -> None:
        """`count` at once, each followed by the next as soon as its answer is complete."""
        count = min(count, self.total)
        await self._client.open(count)
        waiting = iter(self._requests)

        async def one_after_another() -> None:
            # Shared: whoever is free takes the next.
            for request in waiting:
                await self._exchange(request)

        await self._timed([one_after_another() for _ in range(count)])

    async def at_rate(self, rate: float) -> None:
        """`rate` requests a second at even intervals, whether or not earlier ones are answered."""
        start = time.perf_counter()

        async def arrive(request: bytes, at: float) -> None:
            await asyncio.sleep(start + at - time.perf_counter())
            self._late.append(time.perf_counter() - start - at)
            await self._exchange(request)

        numbered = enumerate(self._requests)
        await self._timed([arrive(request, number / rate) for number, request in numbered])

    async def _timed(self, jobs: Sequence[Coroutine[object, object, None]]) -> None:
        cpu, started = time.process_time(), time.perf_counter()
        await asyncio.gather(*jobs)
        self._seconds = time.perf_counter() - started
        self._cpu = time.process_time() - cpu

    async def _exchange(self, request: bytes) -> None:
        try:
            self._outcomes.append(self._read(await self._client.exchange(request)))
        except (OSError, WrongAnswerError) as error:
            self.errors[str(error) or type(error).__name__] += 1

    def figures(self) -> Figures:
        """Rates and times of the good answers, in ms from the request (a piece of a stream may hold
        several tokens); how late requests left, and the client's share of a core."""
        outcomes, seconds = self._outcomes, self._seconds
        counts = {
            "requests": len(outcomes),
            "sequences": sum(outcome.sequences for outcome in outcomes),
            "prompt_tokens": sum(outcome.prompt_tokens for outcome in outcomes),
            "output_tokens": sum(outcome.output_tokens for outcome in outcomes),
        }
        streams = [outcome for outcome in outcomes if outcome.arrivals]
        return {
            "seconds": seconds,
            "errors": self.errors.total(),
            **counts,
            **{f"{name}_per_s": count / seconds for name, count in counts.items()},
            "client_cpu_share": self._cpu / seconds,
            **milliseconds("latency", [outcome.latency for outcome in outcomes]),
            **milliseconds("ttft", [stream.arrivals[0] for stream in streams]),
            **milliseconds("tpot", [s.time_per_token for s in streams if s.output_tokens > 1]),
            **milliseconds("itl", [gap for stream in streams for gap in stream.gaps()]),
            **milliseconds("late", self._late),
        }
