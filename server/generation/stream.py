"""A streamed answer: the choices of a generation as events, while they grow."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager

import msgspec
from msgspec import UNSET, Struct, UnsetType

from server.errors import APIError
from server.generation.generation import Generation
from server.generation.text_piece import TextPiece
from server.http.parted_answer import held_bytes, slices
from server.http.sse import DONE, event, event_in_parts
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
    """Where a stream reports its usage. Raises APIError for stream options without a stream."""
    options = body.stream_options
    if options is None:
        return StreamedUsage(at_end=False, in_pieces=False)
    if not body.stream:
        raise APIError(
            "invalid_request", "stream_options: only with `stream`", param="stream_options"
        )
    return StreamedUsage(
        at_end=bool(options.include_usage), in_pieces=bool(options.continuous_usage_stats)
    )


async def stream_events(
    generating: AbstractAsyncContextManager[Generation],
    usage: StreamedUsage,
    chunks: Callable[[TextPiece, CompletionUsage | UnsetType | None], Iterable[Struct]],
    last: Callable[[CompletionUsage], Struct],
    in_parts: Callable[[TextPiece, CompletionUsage | UnsetType | None], Awaitable[list[bytes]]]
    | None = None,
) -> AsyncGenerator[bytes]:
    """An empty item once the engine has accepted the job, then the text of each step in one item.

    `chunks` formats a piece of a choice, with the usage so far. A piece that has something of its
    prompt goes to `in_parts` instead, if there is that: its event may be long, and is several
    items. `last` formats the chunk at the end that carries the whole usage. Raises APIError or
    EngineError as `generating` does.

    If the engine fails, everything that was certain by then has been sent. Text that was held back,
    because it might have become a stop string or because a character was incomplete, is lost.
    """
    async with generating as generation:
        yield b""
        while updated := await generation.advance():
            pieces = [piece for choice in updated if (piece := choice.next_piece()) is not None]
            used = usage.so_far(generation)
            events: list[bytes] = []
            is_long = False
            for piece in pieces:
                if in_parts is not None and piece.has_prompt:
                    events += event_in_parts(await in_parts(piece, used))
                    is_long = True
                else:
                    events += [event(_encode(chunk)) for chunk in chunks(piece, used)]
            if is_long:
                with generation.holding(held_bytes(events)):
                    async for data in slices(events):
                        yield data
            elif events:
                yield b"".join(events)
        end = event(_encode(last(generation.usage()))) if usage.at_end else b""
    yield end + DONE
