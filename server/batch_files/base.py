"""What a job needs of whoever answers its lines: engines within reach, or a daemon."""

from collections.abc import Callable, Iterator
from typing import Protocol

from server.batch_files.batch_lines import Answer, Line
from server.batches.results import Sharing

Put = Callable[[Line, Answer], None]
"""Takes the answer to a line."""


class LineBackend(Protocol):
    """Where the lines of a job go."""

    sharing: Sharing

    async def answer(self, lines: Iterator[Line], put: Put) -> None:
        """Answer every line, errors included. Those that begin alike follow each other.

        Raises JobStoppedError once nothing more can be answered.
        """
        ...
