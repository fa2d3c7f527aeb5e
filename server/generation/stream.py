"""An answer in parts: the events that tell what a job generates, as it does."""

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractAsyncContextManager

import msgspec

from server.generation.job import Generation
from server.http.sse import DONE, event
from server.schemas.completions import CompletionChoice, CompletionUsage

_encode = msgspec.json.Encoder().encode


async def stream_events(
    generation: AbstractAsyncContextManager[Generation],
    chunks: Callable[[CompletionChoice], Iterable[msgspec.Struct]],
    last: Callable[[CompletionUsage], msgspec.Struct] | None,
) -> AsyncGenerator[bytes]:
    """An empty item once the engine has accepted the job, then the news of each step in one item.

    `chunks` makes events of a choice's news; `last` makes the one that tells the usage, if any.
    Raises APIError or EngineError as `generation` does.
    """
    async with generation as job:
        yield b""
        while touched := await job.news():
            pieces = [piece for choice in touched if (piece := choice.news()) is not None]
            told = [event(_encode(chunk)) for piece in pieces for chunk in chunks(piece)]
            if told:
                yield b"".join(told)
        end = b"" if last is None else event(_encode(last(job.usage())))
    yield end + DONE
