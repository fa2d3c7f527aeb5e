"""An engine of one's own: prompts that begin alike go to it as groups."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from engine_core.refusal import RefusalError
from engine_core.tokenization.tokenizer import Tokenizer
from server.api.completions import completion_plan
from server.app.application import create_app
from server.app.endpoints import all_endpoints
from server.batches.base import Put
from server.batches.bundles import Row, with_ids
from server.batches.engine_run import EngineRun
from server.batches.in_process import InProcess
from server.batches.posting import post
from server.batches.results import JobStoppedError, RequestError, Sharing
from server.daemon.run import RunningEngine, running_engine
from server.generation.plan import GenerationPlan
from server.models.model_setup import EngineOptions
from server.schemas.completions import CompletionRequest
from server.service.registry import Model, Registry
from server.service.service import Service
from server.settings.server_config import Limits, ServerConfig

_AT_ONCE = 1024
"""Texts that are tokenized together: Ctrl-C waits for them."""


class OwnEngine:
    """The engine of one model, behind the handlers of the HTTP API but without a socket."""

    sharing: Sharing = "by token"

    def __init__(self, service: Service) -> None:
        self._service = service
        self._model = service.registry.models[0]
        self._in_process = InProcess(create_app(service))

    async def complete(self, requests: Mapping[int, CompletionRequest], put: Put) -> None:
        """As `Backend` says."""
        self._check_generates()
        planned: list[tuple[int, CompletionRequest, GenerationPlan]] = []
        for index, request in requests.items():
            try:
                planned.append((index, request, self._plan(request)))
            except RefusalError as error:
                put(index, RequestError(error.code, error.message, error.param))
        rows: list[Row] = []
        for start in range(0, len(planned), _AT_ONCE):
            part = planned[start : start + _AT_ONCE]
            rows += await asyncio.to_thread(with_ids, self._model.tokenizer, part)
        await EngineRun(self._service, self._model, put).run(rows)

    async def post(self, path: str, body: Mapping[str, object]) -> bytes:
        """As `Backend` says."""
        return await post(self._in_process.exchange, path, body)

    def _plan(self, request: CompletionRequest) -> GenerationPlan:
        """Raises RefusalError."""
        try:
            return completion_plan(request, self._model, self._service.limits)
        except UnicodeEncodeError as error:
            raise RefusalError("invalid_request", f"prompt: not text: {error}", "prompt") from None

    def _check_generates(self) -> None:
        task = self._model.served.execution.task
        if task != "generate":
            raise JobStoppedError(f"this model's task is {task}: it does not generate")


@asynccontextmanager
async def own_engine(folder: Path, options: EngineOptions) -> AsyncGenerator[OwnEngine]:
    """An engine until the block ends. Raises what `running_engine` raises."""
    async with running_engine(folder, options) as engine:
        engine.client.batch = True
        yield OwnEngine(_service(engine))


def _service(engine: RunningEngine) -> Service:
    served = engine.model
    execution = served.execution
    tokenizer = Tokenizer.for_model(execution.model, execution.load_format)
    registry = Registry([Model(served, tokenizer, engine.client)], all_endpoints())
    config = ServerConfig(
        host="",
        port=0,
        api_workers=1,
        drain_timeout=0,
        log_level=execution.log_level,
        limits=Limits(max_queue_seconds=0),
        models=(served,),
    )
    return Service(config, registry)
