"""The conversations that wait for a template's process, within bounds."""

import asyncio

from server.errors import APIError
from server.templates.protocol import Answer

# What may wait for one template in one API process. A usual conversation takes a millisecond.
_MAX_CONVERSATIONS = 2048
_MAX_BYTES = 64 << 20


class PendingRender:
    """A conversation that waits for its prompt: the frame to send, and the answer to come, which is
    cancelled when the client leaves."""

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def fail(self, error: Exception) -> None:
        """Answer with an error whoever still waits."""
        if not self.answer.done():
            self.answer.set_exception(error)


class RenderQueue:
    """First come, first served; what a client that has left waited for is forgotten at once."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._waiting: dict[PendingRender, None] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, frame: bytes) -> PendingRender:
        """Raises APIError `overloaded` if too many conversations wait, or too many bytes; one waits
        alone whatever its size."""
        if self._waiting and (
            len(self._waiting) >= _MAX_CONVERSATIONS or self._bytes + len(frame) > _MAX_BYTES
        ):
            waits = f"{len(self._waiting)} conversations ({self._bytes} bytes) wait for it"
            message = f"the chat template of model {self._model} is overloaded: {waits}"
            raise APIError("overloaded", message)
        pending = PendingRender(frame)
        self._waiting[pending] = None
        self._bytes += len(frame)
        return pending

    def take(self) -> PendingRender | None:
        """The first whose client still waits; it waits here no more."""
        while self._waiting:
            pending = next(iter(self._waiting))
            self.remove(pending)
            if not pending.answer.done():
                return pending
        return None

    def remove(self, pending: PendingRender) -> None:
        """Forget it. Idempotent."""
        if pending in self._waiting:
            del self._waiting[pending]
            self._bytes -= len(pending.frame)
