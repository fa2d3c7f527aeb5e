"""A streamed answer: events with what a job generates, as it does."""

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractAsyncContextManager

import msgspec
from msgspec import UNSET, Struct, UnsetType

from server.generation.generation import Generation
from server.generation.text_piece import TextPiece
from server.http.sse import DONE, event
from server.schemas.common import CompletionUsage

_encode = msgspec.json.Encoder().encode


class StreamedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Which chunks of a stream carry usage: one more chunk `at_end` the whole, and with
    `in_pieces` every other chunk the usage so far."""

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
    chunks: Callable[[TextPiece, CompletionUsage | UnsetType | None], Iterable[Struct]],
    last: Callable[[CompletionUsage], Struct],
) -> AsyncGenerator[bytes]:
    """An empty item once the engine has accepted the job, then the text of each step in one item.

    `chunks` formats a piece of a choice, with the usage so far; `last` formats the chunk at the end
    that carries the whole usage. Raises APIError or EngineError as `generation` does.
    """
    async with generation as job:
        yield b""
        while updated := await job.advance():
            pieces = [piece for choice in updated if (piece := choice.next_piece()) is not None]
            used = usage.so_far(job)
            events = [event(_encode(chunk)) for piece in pieces for chunk in chunks(piece, used)]
            if events:
                yield b"".join(events)
        end = event(_encode(last(job.usage()))) if usage.at_end else b""
    yield end + DONE
