"""Pages of other origins that a browser lets call the daemon: none by default."""

import time
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.access_log.access_log import AccessLog
from server.metrics.request_record import RequestRecord


def with_cors(app: ASGIApp, origins: Sequence[str], access_log: AccessLog | None) -> ASGIApp:
    """`app`, which the pages of `origins` may call; `*` means all pages.

    A preflight is answered here, without an API key: browsers send none with it. No cookies are
    used.
    """
    if not origins:
        return app
    cors = _ForAllowedOrigins(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=("x-request-id", "retry-after", "x-penstock-ignored"),
    )
    return cors if access_log is None else _LoggedPreflights(cors, access_log)


class _ForAllowedOrigins(CORSMiddleware):
    """Starlette's sends pages of other origins all CORS headers but the one that counts."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """The answer to a preflight."""
        if self.is_allowed_origin(request_headers["origin"]):
            return super().preflight_response(request_headers)
        return PlainTextResponse("Disallowed CORS origin", 400, headers={"vary": "Origin"})

    async def simple_response(
        self, scope: Scope, receive: Receive, send: Send, request_headers: Headers
    ) -> None:
        """Any other answer."""
        origin = request_headers.get("origin")
        if origin is None or self.is_allowed_origin(origin):
            await super().simple_response(scope, receive, send, request_headers)
            return

        async def send_varied(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).add_vary_header("Origin")
            await send(message)

        await self.app(scope, receive, send_varied)


class _LoggedPreflights:
    """The access log gets the requests that do not come to the gate, which logs the others."""

    def __init__(self, app: ASGIApp, access_log: AccessLog) -> None:
        self._app = app
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") != "OPTIONS":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(request_id="", started=time.perf_counter())

        async def send_and_note(message: Message) -> None:
            record.status = message.get("status", record.status)
            await send(message)

        await self._app(scope, receive, send_and_note)
        if "record" not in scope:
            record.close()
            self._access_log.add(scope, record)
