"""How a render is given up whose client has left, without the end of its process."""

import signal
from types import FrameType
from typing import Self

INTERRUPT = signal.SIGUSR1


class RenderInterrupted(BaseException):
    """The API process no longer wants the prompt. No Exception: nothing in Jinja catches it."""


class Interruptible:
    """INTERRUPT raises RenderInterrupted within its `with` block, and is ignored outside.

    One that comes before the block is lost, so its sender repeats it.
    """

    def __init__(self) -> None:
        self._inside = False
        signal.signal(INTERRUPT, self._on_signal)

    def __enter__(self) -> Self:
        self._inside = True
        return self

    def __exit__(self, *_: object) -> None:
        self._inside = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._inside:
            raise RenderInterrupted
