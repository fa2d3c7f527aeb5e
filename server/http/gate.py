"""The ASGI application: request id, API key, metrics, the endpoint's handler, and an answer if the
handler breaks.

The API key is checked here (401). Too much load (429) is refused by the bytes of this process
(`server/service/ledger.py`), or by the engine (`engine_core/loop/admission.py`). Handlers are
looked up and called here: a framework's middleware, routing and dependencies took a third of the
time from a request to its job.
"""

import re
import time
from collections.abc import Iterable, Sequence

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine_core.refusal import RefusalError
from server.errors import ERRORS, INTERNAL
from server.http.answers import ErrorAnswer, note_error
from server.http.anthropic_errors import is_anthropics
from server.http.body import ClientLeftError
from server.observe.access_log import AccessLog
from server.observe.request_record import CLIENT_LEFT, RequestRecord
from server.service.endpoint import Handler
from server.service.service import Service

_SLASHES = re.compile(r"(/|%2f)+$", re.IGNORECASE)

_MOST_IGNORED = 4096
"""Characters of a header: proxies bound all headers together, to 8 KB and more."""


class RouteTable:
    """A path without parameters is found by one look-up, one with parameters by its pattern. HEAD
    is served wherever GET is: the HTTP server leaves the body out."""

    def __init__(self, routes: Iterable[APIRoute]) -> None:
        self._fixed: dict[tuple[str, str], Handler] = {}
        self._patterns: list[tuple[str, APIRoute]] = []
        for route in routes:
            methods = route.methods or set[str]()
            for method in methods | {"HEAD"} if "GET" in methods else methods:
                if route.param_convertors:
                    self._patterns.append((method, route))
                else:
                    self._fixed[method, route.path] = route.endpoint
        self._paths = frozenset(path for _, path in self._fixed)

    def find(self, scope: Scope) -> Handler | None:
        """The handler for `scope`, which gets the path's parameters."""
        if scope["path"] in self._paths:
            return self._fixed.get((scope["method"], scope["path"]))
        for method, route in self._patterns:
            if method == scope["method"]:
                match, found = route.matches(scope)
                if match is not Match.NONE:
                    scope.update(found, route=route)
                    return route.endpoint
        return None

    def methods(self, scope: Scope) -> set[str]:
        """The methods that are served at the path of `scope`, none for an unknown path."""
        if scope["path"] in self._paths:
            return {method for method, path in self._fixed if path == scope["path"]}
        return {method for method, route in self._patterns if route.path_regex.match(scope["path"])}

    def endpoint(self, scope: Scope) -> str:
        """The path in metrics, whatever the method: with parameters written `{name}`."""
        if scope["path"] in self._paths:
            return scope["path"]
        route = scope.get("route")
        return route.path_format if isinstance(route, APIRoute) else "other"


class SlashRedirect(RedirectResponse):
    """Leads from a request's path to the same without slashes at its end.

    The address is relative. A proxy may serve this path with another scheme, host and prefix.
    Behind several slashes it is the whole path: clients do not agree on `..` there.
    """

    def __init__(self, scope: Scope) -> None:
        path = scope["raw_path"].decode("latin-1")
        bare = _SLASHES.sub("", path)
        slashes, name = path.count("/") - bare.count("/"), bare.rpartition("/")[2]
        target = bare if slashes > 1 else f"../{name}" if slashes else f"./{name}"
        query = scope["query_string"].decode("latin-1")
        super().__init__(target + (f"?{query}" if query else ""))


def redirect_slashes(app: FastAPI) -> None:
    """Make `app` redirect paths that it serves without their last slash."""
    not_found = app.router.not_found

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        bare = {**scope, "path": scope["path"].rstrip("/")}
        known = bare["path"] != scope["path"] and any(
            route.matches(bare)[0] is not Match.NONE for route in app.routes
        )
        await (SlashRedirect(scope) if known else not_found)(scope, receive, send)

    app.router.redirect_slashes = False
    app.router.default = answer


_UNSAFE = re.compile(rb"[^A-Za-z0-9._:/+=-]+")
_MAX_REQUEST_ID = 128


class Gate:
    def __init__(self, service: Service, table: RouteTable, others: ASGIApp) -> None:
        """`others` answers paths that are not in `table`."""
        self._service = service
        self._table = table
        self._others = others
        self._open = {
            endpoint.handler
            for endpoint in service.registry.endpoints
            if not endpoint.requires_key(service.config)
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._others(scope, receive, send)
            return
        started = time.perf_counter()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        # The client's own id, harmless characters only, or a fresh one.
        safe = _UNSAFE.sub(b"", headers.get(b"x-request-id", b""))[:_MAX_REQUEST_ID]
        request_id = safe.decode() or self._service.new_id("req")
        record = RequestRecord(request_id=request_id, started=started)
        scope["service"], scope["record"] = self._service, record
        complete = False
        handler = None

        async def send_with_id(message: Message) -> None:
            nonlocal complete
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message["headers"], *_own_headers(scope, record)]
            else:
                complete = not message.get("more_body", False)
            await send(message)

        try:
            handler = self._table.find(scope)
            record.endpoint = self._table.endpoint(scope)
            if handler in self._open or self._has_key(headers, record):
                await self._answer(handler, scope, receive, send_with_id)
            else:
                await _UNAUTHORIZED(scope, receive, send_with_id)
        except ClientLeftError:
            pass  # nobody reads an answer
        except Exception as error:
            if record.status == CLIENT_LEFT:
                await ErrorAnswer(INTERNAL, cause=error)(scope, receive, send_with_id)
            elif not complete:
                note_error(scope, INTERNAL, error)
                raise  # the status is out: the HTTP server cuts the connection
        finally:
            if not complete:
                _note_unanswered(scope, record)
            self._note(scope, record, handler)

    async def _answer(
        self, handler: Handler | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if handler is None:
            others = self._others
            if methods := self._table.methods(scope):
                allowed = ", ".join(sorted(methods))
                error = RefusalError("method_not_allowed", f"this path is for {allowed}")
                others = ErrorAnswer(error, headers={"allow": allowed})
            await others(scope, receive, send)
            return
        try:
            response = await handler(Request(scope, receive))
        except RefusalError as error:
            response = ErrorAnswer(error)
        await response(scope, receive, send)

    def _note(self, scope: Scope, record: RequestRecord, handler: Handler | None) -> None:
        self._service.note(scope, record)
        if self._service.tracer is not None and handler not in self._open and not record.is_probe:
            self._service.tracer.add(scope, record)

    def _has_key(self, headers: dict[bytes, bytes], record: RequestRecord) -> bool:
        """Whether the request has a key. Notes whose it is."""
        given = headers.get(b"authorization") or b"Bearer " + headers.get(b"x-api-key", b"")
        client = self._service.keys.find(given)
        if client is not None:
            record.client = client
        return client is not None


def _own_headers(scope: Scope, record: RequestRecord) -> list[tuple[bytes, bytes]]:
    headers = [(b"x-request-id", record.request_id.encode())]
    if is_anthropics(scope):
        headers.append((b"request-id", record.request_id.encode()))  # as its SDKs read it
    if record.ignored:
        headers.append((b"x-penstock-ignored", _ignored(record.ignored).encode()))
    return headers


def _ignored(names: Sequence[str]) -> str:
    """The names as one header, with `...` in place of those for which it has no room."""
    text = ",".join(names)
    if len(text) <= _MOST_IGNORED:
        return text
    return text[:_MOST_IGNORED].rpartition(",")[0] + ",..."


def _note_unanswered(scope: Scope, record: RequestRecord) -> None:
    """Note why an answer has not been sent whole. The handler failed, the client left, or the rest
    of the request could not be read, which the HTTP server has answered."""
    unreadable: RefusalError | None = scope.get("unreadable")
    if unreadable is not None:
        record.status, record.error = ERRORS[unreadable.code].status, unreadable.code
    elif record.error is None:
        record.status = CLIENT_LEFT


_UNAUTHORIZED = ErrorAnswer(
    RefusalError(
        "invalid_api_key",
        "this server needs an API key: `Authorization: Bearer KEY`, or `x-api-key: KEY`",
    )
)


def with_cors(app: ASGIApp, origins: Sequence[str], access_log: AccessLog | None) -> ASGIApp:
    """`app`, which the pages of `origins` may call. `*` means all pages. A preflight is answered
    here, without an API key, as browsers send none, and logged. No cookies are used."""
    if not origins:
        return app
    cors = CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=("x-request-id", "retry-after", "x-penstock-ignored"),
    )

    async def logged(scope: Scope, receive: Receive, send: Send) -> None:
        record = RequestRecord(request_id="", started=time.perf_counter())

        async def send_and_note(message: Message) -> None:
            record.status = message.get("status", record.status)
            await send(message)

        await cors(scope, receive, send_and_note)
        if access_log is not None and scope["type"] == "http" and "record" not in scope:
            record.close()
            access_log.add(scope, record)

    return logged
