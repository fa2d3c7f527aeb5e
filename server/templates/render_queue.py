"""The conversations that wait for a template's process, within bounds."""

from collections import defaultdict
from dataclasses import dataclass

from engine_core.client.pending_jobs import Outcome
from engine_core.fair_queuing.fair_queue import FairQueue
from engine_core.fair_queuing.key_share import KeyShare
from engine_core.refusal import RefusalError
from server.templates.protocol import Answer

# What may wait for one template in one API process. A usual conversation takes a millisecond.
_MAX_CONVERSATIONS = 2048
_MAX_BYTES = 64 << 20
_KEYS_AT_LEAST = 2
"""So many API keys can have all of it."""


class PendingRender:
    """A conversation that waits for its prompt: the frame to send, and the answer to come, which is
    cancelled when the client leaves."""

    def __init__(self, frame: bytes, key: KeyShare) -> None:
        self.frame, self.key = frame, key
        self.answer: Outcome[Answer] = Outcome()


@dataclass(slots=True)
class _Waiting:
    """How many conversations wait, and their bytes."""

    conversations: int = 0
    size: int = 0

    def move(self, conversations: int, size: int) -> None:
        """So much more waits, or less."""
        self.conversations += conversations
        self.size += size

    def has_room(self, frame: bytes, part: int) -> bool:
        """For one more within this part of the bounds; one waits alone whatever its size."""
        return not self.conversations or (
            self.conversations < _MAX_CONVERSATIONS // part
            and self.size + len(frame) <= _MAX_BYTES // part
        )


class RenderQueue:
    """API keys take turns, and each has half of the bounds at most; first come, first served for
    each. What a client that has left waited for is forgotten at once."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._turns: FairQueue[PendingRender] = FairQueue()
        self._all = _Waiting()
        self._of_keys: defaultdict[int, _Waiting] = defaultdict(_Waiting)

    def __bool__(self) -> bool:
        return bool(self._turns)

    def add(self, frame: bytes, key: KeyShare) -> PendingRender:
        """Raises RefusalError `overloaded` if too many conversations wait, or too many bytes."""
        self._check_room(self._all, frame)
        if key.number:
            self._check_room(self._of_keys[key.number], frame, _KEYS_AT_LEAST, " of this API key")
        pending = PendingRender(frame, key)
        self._turns.put(pending, key)
        self._move(pending, 1)
        return pending

    def take(self) -> PendingRender | None:
        """The next one whose client still waits; it waits here no more."""
        while self._turns:
            pending = self._turns.take()
            self._move(pending, -1)
            if not pending.answer.done():
                return pending
        return None

    def remove(self, pending: PendingRender) -> None:
        """Forget it. Idempotent."""
        if self._turns.discard(pending, pending.key):
            self._move(pending, -1)

    def _check_room(self, waiting: _Waiting, frame: bytes, part: int = 1, whose: str = "") -> None:
        if not waiting.has_room(frame, part):
            waits = f"{waiting.conversations} conversations ({waiting.size} bytes){whose}"
            message = f"the chat template of model {self._model} is overloaded: {waits} wait for it"
            raise RefusalError("overloaded", message)

    def _move(self, pending: PendingRender, sign: int) -> None:
        for waiting in (self._all, self._of_keys[pending.key.number]):
            waiting.move(sign, sign * len(pending.frame))
