"""From a generation's pieces to its answer: a list of choices, or events while they grow."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from engine_core.refusal import RefusalError
from server.generation.generation import Generation
from server.generation.text_piece import TextPiece
from server.http.sse import DONE, event
from server.schemas.common import CompletionUsage
from server.schemas.sampling import SamplingOptions

_encode = msgspec.json.Encoder().encode


class StreamedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Which chunks of a stream carry usage. With `at_end` one more chunk at the end carries the
    whole usage; with `in_pieces` all chunks before that carry the usage so far."""

    at_end: bool
    in_pieces: bool

    def so_far(self, generation: Generation) -> CompletionUsage | UnsetType | None:
        """The `usage` of a chunk before the end."""
        if self.in_pieces:
            return generation.usage()
        return None if self.at_end else UNSET


def streamed_usage(body: SamplingOptions) -> StreamedUsage:
    """Where a stream reports its usage. Raises RefusalError for stream options without a stream."""
    options = body.stream_options
    if options is None:
        return StreamedUsage(at_end=False, in_pieces=False)
    if not body.stream:
        raise RefusalError(
            "invalid_request", "stream_options: only with `stream`", param="stream_options"
        )
    return StreamedUsage(
        at_end=bool(options.include_usage), in_pieces=bool(options.continuous_usage_stats)
    )


async def encoded_choices(
    pieces: Sequence[TextPiece], choice: Callable[[TextPiece], Awaitable[Struct]]
) -> list[Any]:
    """The choices of a whole answer as JSON, with other requests in between: each repeats what it
    has of its prompt."""
    choices: list[Any] = []
    for piece in pieces:
        if choices:
            await asyncio.sleep(0)
        choices.append(Raw(_encode(await choice(piece))))
    return choices


async def stream_events(
    generating: AbstractAsyncContextManager[Generation],
    usage: StreamedUsage,
    chunks: Callable[[TextPiece, CompletionUsage | UnsetType | None], Awaitable[Sequence[Struct]]],
    last: Callable[[CompletionUsage], Struct],
) -> AsyncGenerator[bytes]:
    """An empty item once the engine has accepted the job, then the text of each step in one item.

    `chunks` formats a piece of a choice, with the usage so far; `last` the chunk at the end that
    carries the whole usage. Raises RefusalError as `generating` does.

    If the engine fails, everything that was certain by then has been sent. Text that was held back,
    because it might have become a stop string or because a character was incomplete, is lost.
    """
    async with generating as generation:
        yield b""
        while updated := await generation.advance():
            pieces = [piece for choice in updated if (piece := choice.next_piece()) is not None]
            used = usage.so_far(generation)
            events = [
                event(_encode(chunk)) for piece in pieces for chunk in await chunks(piece, used)
            ]
            if events:
                yield b"".join(events)
        end = event(_encode(last(generation.usage()))) if usage.at_end else b""
    yield end + DONE
