"""Lines, as many requests come, and the backend that answers them."""

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from server.batches.results import Sharing

_OK = 200


class Line(msgspec.Struct, frozen=True):
    """A request: the `index` of its line, its endpoint, its body as JSON.

    `custom_id` and `model` are what a line of a file says beside and in its body.
    """

    index: int
    custom_id: str
    url: str
    body: bytes
    model: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """An endpoint's answer: HTTP status, request id, JSON in one line.

    A full server wants to be asked again after `retry_after` seconds."""

    status: int
    request_id: str
    body: bytes
    retry_after: float | None = None

    @property
    def is_good(self) -> bool:
        """True for a result, False for an error."""
        return self.status == _OK


Put = Callable[[Line, Answer], None]
"""Takes the answer to a line. Raises JobStoppedError where no other line would get a result."""


class Backend(Protocol):
    """Where lines go: an engine here, or a daemon there."""

    sharing: Sharing

    async def answer(self, lines: Iterable[Line], put: Put) -> None:
        """Answer every line, errors included. Lines that begin alike follow each other.

        Raises JobStoppedError once nothing more can be answered.
        """
        ...
