"""One job: its results as they come, its progress, what is left of it if it is stopped."""

from collections.abc import Awaitable
from contextlib import nullcontext
from typing import Generic, TypeVar

from server.batches.results import JobStoppedError, RequestError
from server.bench.results.measurement import Progress

ResultT = TypeVar("ResultT")


class Job(Generic[ResultT]):
    """`count` requests, each of which gets one result or one error."""

    def __init__(self, title: str, count: int, *, shown: bool) -> None:
        """If it is `shown`, a line on standard error tells how far it is."""
        self._results: list[ResultT | RequestError | None] = [None] * count
        self._done = 0
        progress = Progress(title, "requests", count, lambda: self._done)
        self._line = progress.shown() if shown else nullcontext()

    def put(self, index: int, result: ResultT | RequestError) -> None:
        """The result of a request, given its number."""
        self._results[index] = result
        self._done += 1

    async def run(self, work: Awaitable[None]) -> list[ResultT | RequestError]:
        """All results, in order, once `work` has put them.

        Raises JobStoppedError, with the results so far.
        """
        async with self._line:
            try:
                await work
            except JobStoppedError as error:
                raise JobStoppedError(str(error), self._results) from None
        done = [result for result in self._results if result is not None]
        assert len(done) == len(self._results), "every request has been answered"
        return done
