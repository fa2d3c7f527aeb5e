"""What a job needs of whoever computes it: an engine of its own, or a daemon."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from server.batches.results import GenerateResult, JobStoppedError, Sharing
from server.first_error import first_error
from server.schemas.completions import CompletionRequest

Put = Callable[[int, GenerateResult], None]
"""Takes the result of a request, given its number."""


class Backend(Protocol):
    """Where the requests of a job go."""

    sharing: Sharing

    async def complete(self, requests: Mapping[int, CompletionRequest], put: Put) -> None:
        """Continue the prompts of `requests`, by their numbers, in an order that shares most.

        Raises JobStoppedError.
        """
        ...

    async def post(self, path: str, body: Mapping[str, object]) -> bytes:
        """The answer to a request of the HTTP API, which waits where the server is full.

        Raises RequestError or JobStoppedError.
        """
        ...


async def all_of(work: Iterable[Callable[[], Awaitable[None]]], at_once: int) -> None:
    """Do all of `work`, begun in order. Raises the first JobStoppedError, which ends the rest."""
    left = iter(work)

    async def worker() -> None:
        for each in left:
            await each()

    with first_error(JobStoppedError):
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(worker())
