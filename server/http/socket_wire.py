"""WebSockets on one connection: uvicorn's protocol within the bounds of the ledger."""

from contextlib import suppress
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from server.http.wire import UnreadAnswers, WatchedProtocol


class SocketProtocol(WatchedProtocol, WebSocketsSansIOProtocol):
    """A WebSocket with one client. Its application may put `note_coming` into the scope, which is
    called with the bytes that have come of a message."""

    def __init__(self, *args: Any, unread_answers: UnreadAnswers, **options: Any) -> None:
        """All but `unread_answers` is uvicorn's."""
        super().__init__(*args, **options)
        self._unread_answers = unread_answers
        self._coming = 0
        self.scope: Any = {}

    def data_received(self, data: bytes) -> None:
        self._coming += len(data)
        super().data_received(data)
        # Headers that are not read leave it waiting for ever. Frames may be empty.
        if not self.handshake_initiated or self._coming > 2 * self.config.ws_max_size:
            self.transport.abort()
        if note_coming := self.scope.get("note_coming"):
            note_coming(self._coming)

    def send_receive_event_to_app(self) -> None:
        self._coming = 0
        super().send_receive_event_to_app()

    async def send(self, message: Any) -> None:
        """Send unless the connection ends, of which the application hears by itself."""
        await self.writable.wait()
        if not self.close_sent:
            with suppress(ClientDisconnected):
                await super().send(message)
