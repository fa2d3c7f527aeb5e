"""Runs cases over HTTP: starts or finds the server, makes the requests, warms up, measures."""

import socket
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import msgspec

from engine_core.client.engines import Engines
from server.batches.http_client import Address, HTTPClient
from server.batches.progress import progress_shown
from server.bench import running_model
from server.bench.dummy_models import tokenizer_for, write_model
from server.bench.load import ClientLoad, ClientResult, connected_clients, figures_of
from server.bench.measurement import BenchError, Figures, counted, next_beat
from server.bench.words import single_token_words
from server.bench.workloads import (
    SEED,
    HTTPCase,
    HTTPEmbeddingCase,
    HTTPGenerationCase,
    texts_of,
)
from server.daemon.parts import daemon_parts
from server.daemon.run import (
    START_SECONDS,
    announce,
    private_folder,
    running_parts,
    until_ready,
)
from server.event_loop import all_of
from server.models.model_setup import EngineOptions, set_up_model
from server.settings.settings import Limits, ServedModel, ServerConfig

_WARM_UP_REQUESTS = 64
_SHOWN_ERRORS = 3
_BACKLOG = 2048


@asynccontextmanager
async def started_server(
    options: EngineOptions,
    api_workers: int,
    clients: int,
    tokenizer_file: Path | None,
    shape: Path,
    case: HTTPCase,
) -> AsyncGenerator["HTTPRunner"]:
    """A daemon of our own, on a free port, with a model of `shape`. Raises StartError, and what
    `tokenizer_for` and `set_up_model` raise."""
    tokenizer = tokenizer_for(case, tokenizer_file)
    with (
        private_folder() as (directory, announcement),
        socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG) as listener,
    ):
        folder = directory / "model"
        write_model(folder, shape, tokenizer)
        prefix = f"{directory}/0"
        model = set_up_model(shape.name, folder, options, Limits(), prefix)
        config = ServerConfig(
            host="127.0.0.1",
            port=listener.getsockname()[1],
            api_workers=api_workers,
            log_level="warning",
            models=(model,),
        )
        parts = daemon_parts(config, listener.fileno(), directory)
        async with running_parts(parts) as running:
            # A connection must not wait in the queue of a socket that nobody here accepts from.
            listener.close()
            await running.until(until_ready(config), START_SECONDS)
            engines = Engines.of(model.engines)
            try:
                engines.start()
                announce(announcement, [model])
                address = Address(config.host, config.port)
                words = single_token_words(tokenizer)
                yield HTTPRunner(address, shape.name, words, clients, model, engines)
            finally:
                engines.close()


@asynccontextmanager
async def running_server(
    address: Address,
    name: str | None,
    clients: int,
    tokenizer_file: Path | None,
    _: Path,
    case: HTTPCase,
) -> AsyncGenerator["HTTPRunner"]:
    """A server that runs already, and its model `name` (None: its only one, or the only one for the
    case). Raises BenchError, and what `tokenizer_for` raises."""
    words = tokenizer_file and single_token_words(tokenizer_for(case, tokenizer_file))
    with closing(HTTPClient(address)) as client:
        name = name or await running_model.only_model(client, case)
        words = words or await running_model.single_token_words(client, name)
    yield HTTPRunner(address, name, words, clients)


class HTTPRunner:
    """Runs cases on one model of one server, with texts of `words` that are one token each.

    The `engines` of a server that was started here add their counters to the figures.
    """

    def __init__(
        self,
        address: Address,
        name: str,
        words: Sequence[str],
        clients: int = 1,
        model: ServedModel | None = None,
        engines: Engines | None = None,
    ) -> None:
        self.model = model
        self._engines = engines
        self._clients = clients
        self._address, self.name, self._words = address, name, words

    async def warm_up(self, case: HTTPCase) -> None:
        """Send as many requests as will be in flight, with other contents. Raises BenchError."""
        few = min(case.count, case.in_flight or _WARM_UP_REQUESTS)
        await self._run(msgspec.structs.replace(case, count=few), "warm-up")

    async def measure(self, case: HTTPCase, run: int) -> Figures:
        """Run the case. Each `run` sends other texts: no prefix is in a cache. Raises BenchError if
        any request fails."""
        if self._engines is None:
            return await self._run(case, str(run))
        before = await next_beat(self._engines)
        figures = await self._run(case, str(run))
        return figures | counted(before, await next_beat(self._engines), figures["seconds"])

    async def _run(self, case: HTTPCase, run: str) -> Figures:
        rate = case.rate if isinstance(case, HTTPGenerationCase) else None
        load = ClientLoad(
            address=self._address,
            case=case,
            requests=self._requests(case, f"{SEED} {case.name} {run}"),
            in_flight=case.count if rate else min(case.in_flight or case.count, case.count),
            departures=[number / rate for number in range(case.count)] if rate else [],
        )
        async with (
            connected_clients(load, self._clients) as clients,
            progress_shown(
                case.name,
                "requests",
                len(load.requests),
                lambda: sum(client.done for client in clients),
            ),
        ):
            results = await all_of((client.run() for client in clients), BenchError)
        if any(result.errors for result in results):
            raise BenchError(_errors_of(results, len(load.requests)))
        return figures_of(results)

    def _requests(self, case: HTTPCase, seed: str) -> list[bytes]:
        body: dict[str, object] = {"model": self.name}
        if isinstance(case, HTTPEmbeddingCase):
            size, tokens = case.texts, case.tokens
            body["encoding_format"] = "base64" if case.base64 else "float"
        else:
            size, tokens = 1, case.prompt_tokens
            body |= {"max_tokens": case.outputs, "temperature": 0.0, "ignore_eos": True}
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        texts = texts_of(self._words, case.count * size, tokens, seed)
        inputs = [texts[i : i + size] if size > 1 else texts[i] for i in range(0, len(texts), size)]
        request = partial(self._address.request, "POST", case.path)
        return [request({**body, case.field: each}) for each in inputs]


def _errors_of(results: Sequence[ClientResult], requests: int) -> str:
    errors = sum((Counter(result.errors) for result in results), Counter[str]())
    kinds = errors.most_common(_SHOWN_ERRORS)
    shown = "; ".join(f"{count} x {message}" for message, count in kinds)
    return f"{errors.total()} of {requests} requests failed: {shown}"
