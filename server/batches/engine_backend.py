"""Engines within reach: lines are answered by the HTTP API's own handlers, without a socket."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from engine_core.tokenization.tokenizer import Tokenizer
from server.batches.answering import Backend
from server.batches.batch_client import BatchClient
from server.batches.in_process import exchange
from server.daemon.application import all_endpoints, create_app
from server.service.service import Model, Registry, Service
from server.settings.api_keys import ClientKey
from server.settings.settings import ServerConfig

_AT_ONCE = 16_384
_UNLIMITED = 1 << 62


class EngineBackend(Backend):
    """Lines whose jobs wait in the engines' clients."""

    def __init__(self, service: Service) -> None:
        app = create_app(service)
        super().__init__(partial(exchange, app), at_once=_AT_ONCE, sharing="by token")
        self.models = [model.served for model in service.registry.models]
        self._keys = service.keys

    def act_for(self, client: ClientKey) -> None:
        """Lines are this client's from now on."""
        self._keys.anybody = client


@asynccontextmanager
async def engine_backend(config: ServerConfig, share: float = 1.0) -> AsyncGenerator[EngineBackend]:
    """Answers lines with the engines of `config`, which run or are about to, until the block ends.
    They have at most this `share` of what an engine takes at once; the rest is for other clients.

    Raises RefusalError if an engine dies before it is ready.
    """
    models: list[Model] = []
    for served in config.models:
        execution = served.execution
        tokenizer = Tokenizer.for_model(execution.model, execution.load_format)
        models.append(Model(served, tokenizer, BatchClient(served.engine, share)))
    # The clients keep to the engines' bounds, and lines wait: nothing is to be refused here.
    unlimited = msgspec.structs.replace(config, max_unread_size=_UNLIMITED, max_request_seconds=0.0)
    registry = Registry(models, all_endpoints())
    service = Service(unlimited, registry)
    try:
        await asyncio.gather(*[model.client.start() for model in models])
        await asyncio.gather(*[model.client.wait_ready() for model in models])
        yield EngineBackend(service)
    finally:
        await registry.close()
