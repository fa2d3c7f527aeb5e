"""Lines answered by engines within reach: through the HTTP API's own handlers, in groups."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice

import msgspec

from engine_core.tokenization.tokenizer import Tokenizer
from server.app.application import create_app
from server.app.endpoints import all_endpoints
from server.batch_files.answering.arrivals import Arrivals
from server.batch_files.answering.asking import answered
from server.batch_files.answering.grouping_client import GroupingClient
from server.batch_files.base import Put
from server.batch_files.batch_lines import Line
from server.batches.in_process import InProcess
from server.batches.results import JobStoppedError, Sharing
from server.first_error import first_error
from server.keys.client_keys import ClientKey
from server.service.registry import Model, Registry
from server.service.service import Service
from server.settings.server_config import ServerConfig

_AT_ONCE, _BYTES_AT_ONCE = 256, 32 << 20
"""Lines that are begun together, and their size: their texts are tokenized together."""
_FIRST_WINDOW, _LARGEST_WINDOW = 1 / 32, 1 / 2
"""Parts of what an engine takes at once. The first ones are small: the engine has nothing to do
before them. While one window is computed, there is room for the next."""
_OPEN_LINES, _OPEN_BYTES = 16_384, 256 << 20
_UNLIMITED = 1 << 62


class GroupedLines:
    """Begins lines in the order in which they come. Each is held where its handler submits its
    prompt, until there is a window of them: then their groups are found, and submitted."""

    sharing: Sharing = "by token"

    def __init__(
        self, service: Service, clients: Sequence[GroupingClient], arrivals: Arrivals
    ) -> None:
        """`clients` are those of the models of `service`."""
        self.models = [model.served for model in service.registry.models]
        self._in_process = InProcess(create_app(service))
        self._keys = service.keys
        self._clients, self._arrivals = clients, arrivals
        self._open_lines = self._open_bytes = 0
        self._ended = asyncio.Event()

    def act_for(self, client: ClientKey) -> None:
        """Lines are this client's from now on."""
        self._keys.anybody = client

    async def answer(self, lines: Iterator[Line], put: Put) -> None:
        """As `LineBackend` says."""
        window = _FIRST_WINDOW
        with first_error(JobStoppedError):
            async with asyncio.TaskGroup() as tasks:
                while chunk := _chunk(lines):
                    for line in chunk:
                        self._arrivals.expect(tasks.create_task(self._answer(line, put)))
                    await self._arrivals.all()
                    await asyncio.gather(*[client.tokenize() for client in self._clients])
                    full = max(client.held() for client in self._clients) >= window
                    if full or self._is_full():
                        await self._submit()
                        window = min(2 * window, _LARGEST_WINDOW)
                    await self._room()
                await self._submit()

    async def _submit(self) -> None:
        await asyncio.gather(*[client.submit() for client in self._clients])

    async def _answer(self, line: Line, put: Put) -> None:
        size = len(line.body)
        self._open_lines += 1
        self._open_bytes += size
        try:
            put(line, await answered(self._in_process.exchange, line))
        finally:
            self._open_lines -= 1
            self._open_bytes -= size
            self._ended.set()

    def _is_full(self) -> bool:
        return self._open_lines >= _OPEN_LINES or self._open_bytes >= _OPEN_BYTES

    async def _room(self) -> None:
        """Wait until more lines may be open."""
        while self._is_full():
            self._ended.clear()
            await self._ended.wait()


def _chunk(lines: Iterator[Line]) -> list[Line]:
    """The next lines to begin; none at the end."""
    chunk: list[Line] = []
    size = 0
    for line in islice(lines, _AT_ONCE):
        chunk.append(line)
        size += len(line.body)
        if size >= _BYTES_AT_ONCE:
            break
    return chunk


@asynccontextmanager
async def grouped_lines(config: ServerConfig, share: float = 1.0) -> AsyncGenerator[GroupedLines]:
    """Answers lines with the engines of `config`, which run or are about to, until the block ends.
    They have at most this `share` of what an engine takes at once; the rest is for other clients.

    Raises RefusalError if an engine dies before it is ready.
    """
    arrivals = Arrivals()
    models: list[Model] = []
    clients: list[GroupingClient] = []
    for served in config.models:
        execution = served.execution
        tokenizer = Tokenizer.for_model(execution.model, execution.load_format)
        clients.append(GroupingClient(served.engine, tokenizer, arrivals, share))
        models.append(Model(served, tokenizer, clients[-1]))
    # The clients keep to the engines' bounds, and lines wait: nothing is to be refused here.
    limits = msgspec.structs.replace(
        config.limits,
        max_requests=_UNLIMITED,
        max_rows=_UNLIMITED,
        max_tokens=_UNLIMITED,
        max_request_seconds=0.0,
    )
    registry = Registry(models, all_endpoints())
    service = Service(msgspec.structs.replace(config, limits=limits), registry)
    await registry.start()
    try:
        await asyncio.gather(*[client.wait_ready() for client in clients])
        yield GroupedLines(service, clients, arrivals)
    finally:
        await registry.close()
