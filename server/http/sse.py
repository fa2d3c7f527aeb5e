"""Server-sent events: a stream of byte strings, each written to the socket at once."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Self

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from engine_core.refusal import RefusalError
from server.errors import INTERNAL, error_body
from server.http.disconnect import CancelOnDisconnect, ClientLeftError
from server.http.error_answer import note_error

DONE = b"data: [DONE]\n\n"


def event(data: bytes) -> bytes:
    """One event that carries `data` (JSON)."""
    return b"data: " + data + b"\n\n"


class EventStream(Response):
    """The answer 200 with a body of events. An error on the way is the last event.

    Each item of `events` is written at once: one or more whole events. The last event is DONE.
    `events` is closed whatever happens: a client that leaves cancels it where it waits.
    """

    def __init__(self, events: AsyncGenerator[bytes]) -> None:
        super().__init__(
            headers={"cache-control": "no-cache"}, media_type="text/event-stream; charset=utf-8"
        )
        del self.headers["content-length"]
        self._events = events

    @classmethod
    async def begin(cls, events: AsyncGenerator[bytes]) -> Self:
        """Run `events` up to its first item, which is not sent. Until then no status line has been
        sent, so a failure can still be answered with a status of its own.

        Raises whatever `events` raises.
        """
        await anext(events)
        return cls(events)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events) as events:
            with suppress(ClientLeftError), CancelOnDisconnect(receive):
                await send(
                    {
                        "type": "http.response.start",
                        "status": self.status_code,
                        "headers": self.raw_headers,
                    }
                )
                try:
                    async for data in events:
                        await send(_body(data, more=not data.endswith(DONE)))
                except RefusalError as error:
                    await send(_last(scope, error))
                except Exception as error:
                    await send(_last(scope, INTERNAL, error))


def _last(scope: Scope, error: RefusalError, cause: Exception | None = None) -> Message:
    note_error(scope, error, cause)
    return _body(event(error_body(error)), more=False)


def _body(data: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}
