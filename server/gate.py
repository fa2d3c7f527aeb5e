"""The outermost layer: request id, API key, counts, and a last answer if a handler breaks."""

import hmac
import logging
import re
import time

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import APIError
from server.service import Service

_log = logging.getLogger(__name__)

CLIENT_LEFT = 499
_UNSAFE = re.compile(rb"[^A-Za-z0-9._:/+=-]+")
_MAX_REQUEST_ID = 128
_OPEN_PATHS = ("/health", "/health/live", "/health/ready", "/metrics")


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, service: Service, endpoints: frozenset[str]) -> None:
        """`endpoints` are the paths that get metrics of their own; the rest count as "other"."""
        self._app = app
        self._service = service
        self._endpoints = endpoints
        key = service.config.api_key
        self._authorization = f"Bearer {key}".encode() if key is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = self._request_id(headers)
        status = CLIENT_LEFT

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        try:
            app = self._app if self._admits(scope["path"], headers) else _UNAUTHORIZED
            await app(scope, receive, send_with_id)
        except Exception:
            if status != CLIENT_LEFT:
                raise  # the head is out: the HTTP server logs this and cuts the connection
            _log.exception("request %s failed", request_id.decode())
            broken = error_answer(APIError("internal_error", "the server failed; its log says why"))
            await broken(scope, receive, send_with_id)
        finally:
            endpoint = scope["path"] if scope["path"] in self._endpoints else "other"
            self._service.metrics.answered(endpoint, status, time.perf_counter() - started)

    def _admits(self, path: str, headers: dict[bytes, bytes]) -> bool:
        if self._authorization is None or path in _OPEN_PATHS:
            return True
        return hmac.compare_digest(headers.get(b"authorization", b""), self._authorization)

    def _request_id(self, headers: dict[bytes, bytes]) -> bytes:
        """The client's own id, harmless characters only, or a fresh one."""
        named = headers.get(b"x-request-id")
        safe = _UNSAFE.sub(b"", named)[:_MAX_REQUEST_ID] if named is not None else b""
        return safe or self._service.new_id("req").encode()


def error_answer(error: APIError) -> Response:
    """The answer that `error` stands for."""
    return Response(
        error.body(),
        status_code=error.status,
        headers=error.headers,
        media_type="application/json",
    )


_UNAUTHORIZED = error_answer(
    APIError(
        "invalid_api_key",
        "this server needs its API key: `Authorization: Bearer KEY`",
        headers={"www-authenticate": "Bearer"},
    )
)
