"""The state that the handlers of one API process share, and how it stops."""

import asyncio
import itertools
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from engine_core.refusal import RefusalError
from server.access_log.access_log import AccessLog
from server.batches.state.state_folder import StateFolder
from server.body_limits.decoding_turns import DecodingTurns
from server.errors import ERRORS
from server.keys.client_keys import ClientKeys
from server.metrics.metrics import Metrics
from server.metrics.request_record import RequestRecord
from server.service.endpoint import Endpoint
from server.service.in_flight import InFlight
from server.service.ledger import Ledger
from server.service.registry import Model, Registry
from server.settings.server_config import ServerConfig, State

if TYPE_CHECKING:
    from server.request_tracing.request_tracer import RequestTracer

# Requests that are ended at the drain's deadline need a moment to answer their clients.
_LAST_ANSWERS_S = 1.0


class Service:
    """The state behind the routes: keys, models, the ledger, metrics, and whether the doors are
    open."""

    def __init__(self, config: ServerConfig, registry: Registry, *, index: int = 0) -> None:
        """`index` is the number of this API process. Raises OSError, StateFolderError."""
        self.config = config
        self.limits = config.limits
        self.keys = ClientKeys(config.api_keys, config.cache_secret, config.share_prefixes)
        self.registry = registry
        paths = [endpoint.path_format for endpoint in registry.endpoints]
        self.metrics = Metrics(config, registry.models, paths, index)
        self.access_log = _access_log(config, self.metrics)
        self.tracer = _request_tracer(config.otlp_traces_endpoint)
        self.state = _state_folder(config.state)
        self.in_flight = InFlight(self.metrics.set_in_flight)
        self.ledger = Ledger(self.limits.max_unread_size)
        self.decoding = DecodingTurns()
        self.encoding = asyncio.Lock()
        """Held while a large answer is encoded: there is never more than one beside the ledger."""
        self.draining = False
        self._id_prefix = secrets.token_hex(8)
        self._ids = itertools.count(1)

    def new_id(self, kind: str) -> str:
        """An id that no other answer of any API process has."""
        return f"{kind}-{self._id_prefix}{next(self._ids):012x}"

    def find(
        self,
        record: RequestRecord,
        model: str | None,
        endpoint: Endpoint,
        priority: int | None = None,
    ) -> Model:
        """The model that the request of `record` means; `priority` is that of a job for its engine.

        Raises RefusalError where it cannot be served now, or not with that priority, or where the
        engine's queue is known to be full: before any more is done for the request.
        """
        found = self.registry.find(model, endpoint)
        record.model = found.name
        record.begun = time.perf_counter()
        self.check([found])
        if priority is not None:
            self._check_priority(priority)
            found.client.breakers[record.client.share.number].check(priority)
        return found

    def _check_priority(self, priority: int) -> None:
        allowed = self.limits.priority_range
        if allowed is None and priority != 0:
            message = "priority: only 0 is served, as this server has no --priority-range LOW:HIGH"
            raise RefusalError("invalid_request", message, "priority")
        if allowed is not None and not allowed[0] <= priority <= allowed[1]:
            low, high = allowed
            message = f"priority: {priority} is not from {low} to {high}, this server's range"
            raise RefusalError("invalid_request", message, "priority")

    def check(self, models: Sequence[Model]) -> None:
        """Raises RefusalError unless new requests for each of `models` are taken: `unhealthy`,
        `draining`, `not_ready`."""
        for model in models:
            model.check_alive()
        if self.draining:
            raise RefusalError("draining", "the server is shutting down")
        for model in models:
            model.check_loaded()

    def note(self, scope: Scope, record: RequestRecord) -> None:
        """Count a request that is over, and write its line into the access log."""
        record.close()
        self.metrics.answered(record)
        if self.access_log is not None:
            self.access_log.add(scope, record)

    def note_unread(self, scope: Scope, error: RefusalError) -> bytes:
        """Note a request that could not be read, and so never comes to the application: it was
        answered with `error`; `scope` has what is known of it. Returns its id."""
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
        """Refuse new requests, let running ones finish, end the rest at the deadline."""
        self.draining = self.metrics.draining = True
        if not await self.in_flight.empty(self.config.drain_timeout):
            self.cut()
            await self.in_flight.empty(_LAST_ANSWERS_S)

    def cut(self) -> None:
        """End all running requests, each with an answer or a last event; this ends a drain."""
        self.registry.abort_all(RefusalError("draining", "the server is shutting down"))


def _access_log(config: ServerConfig, metrics: Metrics) -> AccessLog | None:
    if config.access_log is None:
        return None
    return AccessLog(config.access_log, metrics.dropped_lines, alone=config.api_workers == 1)


def _state_folder(state: State) -> StateFolder | None:
    return None if state.folder is None else StateFolder(Path(state.folder), state.token)


def _request_tracer(endpoint: str | None) -> "RequestTracer | None":
    if endpoint is None:
        return None
    # Imported here: its packages are an extra.
    from server.request_tracing.request_tracer import RequestTracer  # noqa: PLC0415

    return RequestTracer(endpoint)


def service_of(request: Request) -> Service:
    """The service of the application that `request` came to."""
    return cast("Service", request.scope["service"])


def record_of(request: Request) -> RequestRecord:
    """The record of `request`."""
    return cast("RequestRecord", request.scope["record"])


def json_answer(answer: object) -> Response:
    """A 200 with `answer` as JSON."""
    return Response(msgspec.json.encode(answer), media_type="application/json")
