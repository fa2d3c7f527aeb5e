"""Pages of other origins that a browser lets call the daemon: none by default."""

import time
from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
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
    cors = CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=("x-request-id", "retry-after"),
    )
    return cors if access_log is None else _LoggedPreflights(cors, access_log)


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
