"""The state that the handlers of one API process share, and its drain."""

import asyncio
import hashlib
import itertools
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from engine_core.client.engines import Engines
from engine_core.config import EngineConfig
from engine_core.messages import JobOptions, JobTiming
from engine_core.refusal import RefusalError
from engine_core.tokenization.tokenizer import Tokenizer
from server import __version__
from server.batches.state.state_folder import StateFolder
from server.errors import ERRORS, quoted
from server.models.text_bound import TextBound
from server.observe.access_log import AccessLog
from server.observe.metrics import Metrics
from server.observe.request_record import RequestRecord
from server.schemas.common import invalid
from server.service.decoding_turns import DecodingTurns
from server.service.endpoint import Endpoint
from server.service.label_tokens import LabelTokens
from server.service.late_interaction import LateInteraction
from server.service.ledger import Ledger
from server.service.token_text import TokenText
from server.service.vector_cache import VectorCache
from server.settings.api_keys import ClientKeys
from server.settings.settings import Limits, ServedModel, ServerConfig
from server.templates.template_client import TemplateClient
from workers.contract.config import ExecutionConfig
from workers.contract.reranking import UNKNOWN_TEMPLATE

Result = TypeVar("Result")

# For the last answers of requests that are ended at the drain's deadline.
_LAST_ANSWERS_S = 1.0

# Less than a liveness probe waits.
_ENGINES_S, _READY_POLL_S = 3.0, 0.02

_DIGITS = 10


class Model:
    """One served model: its configuration, its tokenizer, its engines."""

    def __init__(self, served: ServedModel, tokenizer: Tokenizer, engines: Engines) -> None:
        self.served = served
        self.name = served.name
        self.names = (served.name, *served.aliases)
        self.vocab_size = served.execution.model.vocab_size
        self.max_model_len = served.execution.max_model_len
        self.fingerprint = system_fingerprint(served.execution)
        self.text_only = served.execution.model.wrapped
        self.tokenizer = tokenizer
        self.text_bound = TextBound(tokenizer, self.max_model_len)
        added = tokenizer.raw.get_added_tokens_decoder().items()
        self.special_ids = frozenset(number for number, token in added if token.special)
        self.token_bytes = tokenizer.token_bytes
        self.token_text = TokenText(self.token_bytes)
        self.labels = LabelTokens(tokenizer)
        late, size = served.execution.model.late_interaction, self.vocab_size
        self.late_interaction = late and LateInteraction(late, tokenizer, size)
        self.engines = engines
        self.chat = TemplateClient(served.name, Path(served.path))

    def serves(self, endpoint: Endpoint) -> bool:
        return endpoint.is_served_by(self.served.execution)

    def check_ready(self) -> None:
        """Raises RefusalError while requests would wait for stages that are started again."""
        if not self.engines.is_ready:
            raise RefusalError("not_ready", f"the stages of model {self.name} are started again")

    def check_alive(self) -> None:
        """Raises RefusalError if no engine is left, for good. The supervisor kills one that
        hangs."""
        if self.engines.are_dead:
            raise RefusalError("unhealthy", f"the engine of model {self.name} has stopped")


def system_fingerprint(execution: ExecutionConfig) -> str:
    """Digits for the release, model, devices and settings, the same at every start."""
    lasting = msgspec.structs.replace(
        execution,
        worker_endpoint="",
        token_endpoint="",
        start="",
        cluster_keys=None,
        # Depends on the memory that is free at the start.
        kv_cache_bytes=0,
        memory_shares=(),
        # Changes no text.
        log_level="",
        setting_names={},
    )
    text = __version__.encode() + msgspec.json.encode(lasting, order="sorted")
    return f"fp_{hashlib.sha256(text).hexdigest()[:_DIGITS]}"


class Registry:
    """The models by name, in the order in which the daemon was given them."""

    def __init__(
        self,
        models: list[Model],
        endpoints: Sequence[Endpoint],
        default_model: str | None = None,
    ) -> None:
        """`default_model` is the name of one of `models`."""
        self.models = models
        self.endpoints = endpoints
        self.created = int(time.time())
        self._by_name = {name: model for model in models for name in model.names}
        self._default = None if default_model is None else self._by_name[default_model]

    @classmethod
    def load(
        cls,
        served: Sequence[ServedModel],
        endpoints: Sequence[Endpoint],
        engines: Callable[[Sequence[EngineConfig]], Engines] = Engines.of,
        *,
        default_model: str | None = None,
    ) -> Self:
        """Read every tokenizer. Raises TokenizerError, naming the file that is missing."""
        models: list[Model] = []
        for model in served:
            execution = model.execution
            tokenizer = Tokenizer.for_model(execution.model, execution.load_format)
            models.append(Model(model, tokenizer, engines(model.engines)))
        return cls(models, endpoints, default_model)

    def start(self) -> None:
        """Connect to every engine, which need not be up yet. Compile the chat templates."""
        for model in self.models:
            model.engines.start()
            model.chat.start()

    async def close(self) -> None:
        """Leave every engine. Running jobs fail as `draining`."""
        for model in self.models:
            model.engines.close()
            await model.chat.close()

    def find(self, name: str | None, endpoint: Endpoint) -> Model:
        """The model that a request means: where its name is nobody's, the default model, if that
        serves the endpoint. Raises RefusalError: unknown name, a model that does not serve the
        endpoint, no name although several serve it."""
        default = self._default
        if default is not None and name not in self._by_name and default.serves(endpoint):
            return default
        model = self._only(endpoint) if name is None else self.named(name)
        if not model.serves(endpoint):
            served = ", ".join(self.paths_of(model))
            reason = f"model {model.name} serves {served}, not {endpoint.path}"
            if endpoint.relevance and not model.served.execution.model.reads_pairs:
                reason += f": {UNKNOWN_TEMPLATE}"
            raise RefusalError("wrong_endpoint", reason, "model")
        return model

    def paths_of(self, model: Model) -> list[str]:
        """The endpoints that `model` serves, without their variants."""
        return [
            endpoint.path
            for endpoint in self.endpoints
            if endpoint.variant_of is None and model.serves(endpoint)
        ]

    def serves(self, endpoint: Endpoint) -> bool:
        """True if some model serves it."""
        return any(model.serves(endpoint) for model in self.models)

    def named(self, name: str) -> Model:
        """The model of this name, in any state. Raises RefusalError for an unknown one."""
        model = self._by_name.get(name)
        if model is None:
            known = ", ".join(self._by_name)
            message = f"there is no model {quoted(name)} here ({known})"
            raise RefusalError("model_not_found", message, "model")
        return model

    def _only(self, endpoint: Endpoint) -> Model:
        able = [model for model in self.models if model.serves(endpoint)]
        if len(able) == 1:
            return able[0]
        if not able:
            raise RefusalError(
                "wrong_endpoint", f"no model of this daemon serves {endpoint.path}", "model"
            )
        names = ", ".join(model.name for model in able)
        raise RefusalError("model_required", f"name one of the models: {names}", "model")


class Service:
    """The state behind the routes: keys, models, ledger, metrics, drain."""

    def __init__(
        self, config: ServerConfig, registry: Registry, *, index: int = 0, replaces: bool = False
    ) -> None:
        """`index` is the number of this API process, which may replace one that was lost. Raises
        OSError, StateFolderError."""
        self.config, self._replaces = config, replaces
        self.limits: Limits = config
        self.keys = ClientKeys(config.api_keys, config.cache_secret, config.share_prefixes)
        self.registry = registry
        paths = [endpoint.path_format for endpoint in registry.endpoints]
        self.metrics = Metrics(config, [model.engines for model in registry.models], paths, index)
        self.access_log = None
        if config.access_log is not None:
            alone = config.api_workers == 1
            self.access_log = AccessLog(config.access_log, self.metrics.dropped_lines, alone=alone)
        self.tracer = None
        if config.otlp_traces_endpoint is not None:
            # Imported here: its packages are an extra.
            from server.observe.request_tracer import RequestTracer  # noqa: PLC0415

            self.tracer = RequestTracer(config.otlp_traces_endpoint)
        self.state = None
        if config.state.folder is not None:
            self.state = StateFolder(Path(config.state.folder), config.state.token)
        self.in_flight = InFlight(self.metrics.set_in_flight)
        self.ledger = Ledger(self.limits.max_unread_size)
        self.vectors = VectorCache(self.limits.vector_cache_size or 0)
        self.decoding = DecodingTurns()
        self.encoding = asyncio.Lock()
        """Held while a large answer is encoded, which the ledger does not count."""
        self.draining = False
        self._id_prefix = secrets.token_hex(8)
        self._ids = itertools.count(1)

    def new_id(self, kind: str) -> str:
        """An id that is unique among all API processes."""
        return f"{kind}-{self._id_prefix}{next(self._ids):012x}"

    def find(
        self,
        record: RequestRecord,
        model: str | None,
        endpoint: Endpoint,
        priority: int | None = None,
    ) -> Model:
        """The model that the request of `record` means. `priority` is its job's. Raises
        RefusalError if it cannot be served now, or not with that priority, or if the engine's queue
        is known to be full."""
        found = self.registry.find(model, endpoint)
        record.model = found.name
        record.begun = time.perf_counter()
        self.check([found])
        if priority is not None:
            self._check_priority(priority)
            key = record.client.share
            engine = found.engines.choose(JobOptions(key=key, priority=priority))
            engine.breakers[key.number].check(priority)
        return found

    def _check_priority(self, priority: int) -> None:
        low, high = self.limits.priority_range or (0, 0)
        if not low <= priority <= high:
            reason = f"{priority} is not from {low} to {high} (--priority-range of this server)"
            raise invalid("priority", reason)

    def check(self, models: Sequence[Model]) -> None:
        """Raises RefusalError unless all of `models` take new requests: `unhealthy`, `draining`,
        `not_ready`."""
        for model in models:
            model.check_alive()
        if self.draining:
            raise RefusalError("draining", "the server is shutting down")
        for model in models:
            if model.engines.are_loading:
                raise RefusalError("not_ready", f"model {model.name} is still loading")

    def check_all_ready(self) -> None:
        """Raises RefusalError unless all models are ready, and take new requests."""
        self.check(self.registry.models)
        for model in self.registry.models:
            model.check_ready()
            model.chat.check()

    async def start(self) -> None:
        """Connect to the engines. A process that replaces another waits until all models are ready,
        for a few seconds: an engine may be lost, too. Meanwhile connections go to others, or wait.
        """
        self.registry.start()
        end = time.monotonic() + (_ENGINES_S if self._replaces else 0.0)
        while time.monotonic() < end and not self.draining:
            with suppress(RefusalError):
                self.check_all_ready()
                return
            await asyncio.sleep(_READY_POLL_S)

    def note(self, scope: Scope, record: RequestRecord) -> None:
        """Count a request that is over, and log its access."""
        record.close()
        self.metrics.answered(record)
        if self.access_log is not None:
            self.access_log.add(scope, record)

    def note_unread(self, scope: Scope, error: RefusalError) -> bytes:
        """Note a request that could not be read, and was answered with `error`. `scope` has what is
        known of it. Returns its id."""
        request_id = self.new_id("req")
        record = RequestRecord(
            request_id=request_id,
            started=time.perf_counter(),
            status=ERRORS[error.code].status,
            error=error.code,
        )
        self.note(scope, record)
        return request_id.encode()

    async def drain(self) -> None:
        """Refuse new requests, let running ones finish, and end the rest at the deadline."""
        self.draining = self.metrics.draining = True
        if not await self.in_flight.empty(self.config.drain_timeout):
            self.cut()
            await self.in_flight.empty(_LAST_ANSWERS_S)

    def cut(self) -> None:
        """End all running requests, each with an answer or a last event."""
        for model in self.registry.models:
            for engine in model.engines:
                engine.abort_all(RefusalError("draining", "the server is shutting down"))


class InFlight:
    """Counts the requests within its blocks, for which models work. A drain waits for them."""

    def __init__(self, on_change: Callable[[int], None]) -> None:
        """`on_change` is called with each new number."""
        self._on_change = on_change
        self._requests = 0
        self._ended = asyncio.Event()

    def __enter__(self) -> None:
        self._requests += 1
        self._on_change(self._requests)

    def __exit__(self, *_: object) -> None:
        self._requests -= 1
        self._on_change(self._requests)
        self._ended.set()

    async def empty(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until nothing is in flight. Returns if it is so."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._requests:
                    self._ended.clear()
                    await self._ended.wait()
        return self._requests == 0


def service_of(request: Request) -> Service:
    return cast("Service", request.scope["service"])


def record_of(request: Request) -> RequestRecord:
    return cast("RequestRecord", request.scope["record"])


def client_options(request: Request, options: JobOptions) -> JobOptions:
    """`options` with the key of the request's client, and its salt before their own."""
    client = record_of(request).client
    return msgspec.structs.replace(
        options, cache_salt=client.salt + options.cache_salt, key=client.share
    )


def count_rows(
    request: Request, model: Model, rows: int, tokens: int, cached: int, timing: JobTiming | None
) -> None:
    """Note in the metrics and the request's record a job whose rows have ended with one answer.
    `cached` of its prompts' `tokens` were in the prefix cache."""
    service_of(request).metrics.of_model(model.name).prompt_tokens.add(tokens)
    record = record_of(request)
    record.prompt_tokens += tokens
    record.cached_tokens += cached
    record.rows += rows
    record.end_rows("stop", rows)
    if timing is not None:
        record.add_timing(timing)
        record.encoded_s = time.perf_counter() - record.started


def json_answer(answer: object) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")


def time_left(limits: Limits, record: RequestRecord) -> float | None:
    """The seconds left of the request's time, possibly negative. None without a limit."""
    if not limits.max_request_seconds:
        return None
    begun = record.started if record.begun is None else record.begun
    return begun + limits.max_request_seconds - time.perf_counter()


async def within_limit(limits: Limits, record: RequestRecord, work: Awaitable[Result]) -> Result:
    """The result of `work`, or RefusalError `request_timeout` when the request's time is over."""
    if (left := time_left(limits, record)) is None:
        return await work
    limit = asyncio.timeout(left)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        message = f"no request may take longer than {limits.max_request_seconds:g} s here"
        raise RefusalError("request_timeout", message) from None
