"""The access log of one API process: lines of text or JSON. Never a body, a header, a key or a
query.

At 5,000 requests a second, a microsecond a line is half a percent of a core: JSON's numbers are
cut, not rounded, and repeated strings are cached.
"""

import time
from functools import lru_cache

import msgspec
from starlette.types import Scope

from server.observe.request_record import MOST_OF_PATH, RequestRecord
from server.observe.shared_cells import Count
from server.settings.settings import LogFormat
from workers.contract.process import PIPE_BUF, LineWriter

_STDOUT = 1
_GATHER_S = 0.1
"""A turn of the writer's thread costs more than many lines."""
_PIPE_BYTES = 64 << 10
"""The usual capacity of a pipe."""


class _JsonLine(msgspec.Struct, frozen=True, gc=False):
    time: str
    id: str | None
    client: str | None
    method: str | None
    path: str | None
    model: str | None
    status: int
    error: str | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_seconds: float | None
    first_token_seconds: float | None
    total_seconds: float


_encode = msgspec.json.Encoder().encode


class AccessLog:
    """Writes a line for each request when its answer ends, or its client has left."""

    def __init__(self, form: LogFormat, dropped: Count, *, alone: bool) -> None:
        """Lines that could not be written are counted in `dropped`. `alone`: no other process
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
        """A request whose record is closed. `scope` may lack what could not be read."""
        self._write(self._line(scope, record))

    def close(self) -> None:
        """Write what waits, for a second at most."""
        self._writer.close()


class LineFormat:
    def __init__(self, form: LogFormat) -> None:
        self.line = self._json if form == "json" else self._text
        self._is_json = form == "json"

    def dropped(self, lines: int) -> bytes:
        """A line for so many that nobody will ever see."""
        if self._is_json:
            return _encode({"time": _now(), "dropped": lines}) + b"\n"
        return f"{_now()} dropped={lines}\n".encode()

    def _json(self, scope: Scope, record: RequestRecord) -> bytes:
        client, path = scope["client"], scope.get("raw_path")
        queue, first_token = record.queue_s, record.first_token_s
        line = _JsonLine(
            _now(),
            record.request_id or None,
            client and client[0],
            scope.get("method"),
            None if path is None else _plain(path),
            record.model,
            record.status,
            record.error,
            record.prompt_tokens,
            record.cached_tokens,
            record.output_tokens,
            None if queue is None else queue * 1e6 // 1.0 / 1e6,
            None if first_token is None else first_token * 1e6 // 1.0 / 1e6,
            record.total_s * 1e6 // 1.0 / 1e6,
        )
        return _encode(line) + b"\n"

    def _text(self, scope: Scope, record: RequestRecord) -> bytes:
        client, path = scope["client"], scope.get("raw_path")
        queue, first_token, model = record.queue_s, record.first_token_s, record.model
        target = "-" if path is None else _escaped(_plain(path))
        line = (
            f'{_now()} {client[0] if client else "-"} "{scope.get("method", "-")} {target}" '
            f"{record.status} id={record.request_id or '-'} "
            f"model={'-' if model is None else _quoted(model)} error={record.error or '-'} "
            f"prompt_tokens={record.prompt_tokens} cached_tokens={record.cached_tokens} "
            f"output_tokens={record.output_tokens} "
            f"queue={'-' if queue is None else f'{queue:.6f}'} "
            f"first_token={'-' if first_token is None else f'{first_token:.6f}'} "
            f"total={record.total_s:.6f}\n"
        )
        return line.encode()


def _now() -> str:
    """The time in UTC (RFC 3339), in milliseconds."""
    now = time.time()
    return f"{_date(int(now))}.{int(now % 1 * 1000):03d}Z"


@lru_cache(1)
def _date(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def _plain(path: bytes) -> str:
    """The path as text, which msgspec then escapes."""
    return path[:MOST_OF_PATH].decode("latin-1")


@lru_cache
def _escaped(text: str) -> str:
    """In visible ASCII without quotes: nothing in it can end its field, or the line."""
    return text.encode("unicode_escape").decode().replace('"', '\\"')


@lru_cache
def _quoted(name: str) -> str:
    """A model's name, in quotes if a space or a quote in it would end the field."""
    plain = name.isprintable() and not any(mark in name for mark in ' "\\')
    return name if plain else f'"{_escaped(name)}"'
