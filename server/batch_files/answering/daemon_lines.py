"""Lines answered by a daemon that runs elsewhere, over HTTP."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from functools import partial

from server.batch_files.answering.asking import answered
from server.batch_files.base import Put
from server.batch_files.batch_lines import Line
from server.batches.base import all_of
from server.batches.remote_daemon import Daemon, running_daemon
from server.batches.results import Sharing

_AT_ONCE = 64
"""Requests in flight."""


class DaemonLines:
    """Lines become ordinary requests, begun in the order in which they come."""

    sharing: Sharing = "by whole blocks"

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def answer(self, lines: Iterator[Line], put: Put) -> None:
        """As `LineBackend` says."""

        async def one(line: Line) -> None:
            put(line, await answered(self._daemon.exchange, line))

        await all_of((partial(one, line) for line in lines), _AT_ONCE)


@asynccontextmanager
async def daemon_lines(url: str, api_key: str | None) -> AsyncGenerator[DaemonLines]:
    """The daemon at `url`. Raises ValueError for what is no address."""
    async with running_daemon(url, None, api_key) as daemon:
        yield DaemonLines(daemon)
