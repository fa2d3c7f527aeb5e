"""An answer in parts: the events that tell what a job generates, as it does."""

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractAsyncContextManager

import msgspec
from msgspec import UNSET, Struct, UnsetType

from server.generation.generation import Generation
from server.http.sse import DONE, event
from server.schemas.completions import CompletionChoice, CompletionUsage

_encode = msgspec.json.Encoder().encode


class StreamedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream tells of its usage: all of it in a chunk `at_end`, in every other one what has
    been used so far."""

    at_end: bool
    in_pieces: bool

    def so_far(self, job: Generation) -> CompletionUsage | UnsetType | None:
        """The `usage` of a chunk before the end."""
        if self.in_pieces:
            return job.usage()
        return None if self.at_end else UNSET


async def stream_events(
    generation: AbstractAsyncContextManager[Generation],
    usage: StreamedUsage,
    chunks: Callable[[CompletionChoice, CompletionUsage | UnsetType | None], Iterable[Struct]],
    last: Callable[[CompletionUsage], Struct],
) -> AsyncGenerator[bytes]:
    """An empty item once the engine has accepted the job, then the news of each step in one item.

    `chunks` makes events of a choice's news and their usage; `last` makes the one at the end that
    tells it. Raises APIError or EngineError as `generation` does.
    """
    async with generation as job:
        yield b""
        while touched := await job.news():
            pieces = [piece for choice in touched if (piece := choice.news()) is not None]
            used = usage.so_far(job)
            told = [event(_encode(chunk)) for piece in pieces for chunk in chunks(piece, used)]
            if told:
                yield b"".join(told)
        end = event(_encode(last(job.usage()))) if usage.at_end else b""
    yield end + DONE
