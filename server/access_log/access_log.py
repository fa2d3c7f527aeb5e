"""The access log of one API process."""

from starlette.types import Scope

from server.access_log.lines import LineFormat
from server.metrics.families import Count
from server.metrics.request_record import RequestRecord
from server.settings.server_config import LogFormat
from workers.contract.process.line_writer import PIPE_BUF, LineWriter

_STDOUT = 1
_GATHER_S = 0.1
"""A turn of the writer's thread costs more than many lines."""
_PIPE_BYTES = 64 << 10
"""What a pipe holds, as a rule."""


class AccessLog:
    """Writes a line for each request when its answer ends, or its client has left."""

    def __init__(self, form: LogFormat, dropped: Count, *, alone: bool) -> None:
        """Lines that could not be written are counted in `dropped`; `alone`: no other process
        writes such lines to the same standard output."""
        lines = LineFormat(form)
        self._line = lines.line
        self._writer = LineWriter(
            _STDOUT,
            lines.dropped,
            dropped.add,
            gather_s=_GATHER_S,
            block_bytes=_PIPE_BYTES if alone else PIPE_BUF,
        )
        self._write = self._writer.write

    def add(self, scope: Scope, record: RequestRecord) -> None:
        """A request whose record is closed; `scope` may lack what could not be read."""
        client = scope["client"]
        path = scope.get("raw_path")
        self._write(self._line(record, client and client[0], scope.get("method"), path))

    def close(self) -> None:
        """Write what waits, for a second at most."""
        self._writer.close()
