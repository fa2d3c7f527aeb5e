"""Every error that a client can get: one table from code to HTTP status, type and advice.

The errors of the project, by the moment at which they end something:

    before a process starts (`server.daemon.daemon.START_ERRORS`): one line, exit code 1
        StartError                  server.daemon.daemon      the machine: address, folders
        SettingsError               server.settings.settings  a flag or a key of the file
        SetupError                  server.models.model_setup becomes a SettingsError in a daemon
        DeviceError                 server.models.devices     no such device; likewise
        DemoModelMissingError       server.demo
        ModelSourceError            server.models.model_source
        ModelConfigError            workers.contract.model_config
        UnknownArchitectureError    workers.contract.families.table
        TokenizerError              engine_core.tokenization.tokenizer
    while a worker starts or runs: WorkerFailed is sent, the engine ends
        CheckpointError             workers.weights.tensor_file
        DeviceMemoryError           workers.stage.memory
        PipelineError               workers.links.transport
        SymmetricMemoryError        workers.links.transport
        StreamCounterError          workers.links.stream_counters
        WorkerLostError             engine_core.executor.base
    a request
        RefusalError                engine_core.job           the engine refuses a job, or a
                                                              tokenizer a text
        EngineError                 engine_core.client        what its client gets for that
        APIError                    here                      what an HTTP client gets
"""

import math
from http import HTTPStatus
from typing import Literal, NamedTuple

import msgspec

from engine_core.client.pending_jobs import EngineError
from engine_core.job import RefusalError

ErrorCode = Literal[
    "invalid_request",
    "context_length_exceeded",
    "too_large",
    "wrong_endpoint",
    "model_required",
    "invalid_api_key",
    "model_not_found",
    "not_found",
    "method_not_allowed",
    "body_timeout",
    "gone",
    "body_too_large",
    "unsupported_encoding",
    "unsupported_transfer",
    "overloaded",
    "head_too_large",
    "row_failed",
    "engine_dead",
    "template_unavailable",
    "internal_error",
    "storage_full",
    "state_unavailable",
    "quota_exceeded",
    "not_ready",
    "unhealthy",
    "draining",
    "request_timeout",
]


class ErrorKind(NamedTuple):
    """How a code is reported: HTTP status, OpenAI's `type`, seconds until the client may retry."""

    status: int
    type: str
    retry_after: int | None = None


ERRORS: dict[ErrorCode, ErrorKind] = {
    "invalid_request": ErrorKind(400, "invalid_request_error"),
    "context_length_exceeded": ErrorKind(400, "invalid_request_error"),
    "too_large": ErrorKind(400, "invalid_request_error"),
    "wrong_endpoint": ErrorKind(400, "invalid_request_error"),
    "model_required": ErrorKind(400, "invalid_request_error"),
    "invalid_api_key": ErrorKind(401, "authentication_error"),
    "quota_exceeded": ErrorKind(403, "invalid_request_error"),
    "model_not_found": ErrorKind(404, "invalid_request_error"),
    "not_found": ErrorKind(404, "invalid_request_error"),
    "method_not_allowed": ErrorKind(405, "invalid_request_error"),
    "body_timeout": ErrorKind(408, "invalid_request_error"),
    "gone": ErrorKind(410, "invalid_request_error"),
    "body_too_large": ErrorKind(413, "invalid_request_error"),
    "unsupported_encoding": ErrorKind(415, "invalid_request_error"),
    "overloaded": ErrorKind(429, "rate_limit_error", retry_after=1),
    "head_too_large": ErrorKind(431, "invalid_request_error"),
    "row_failed": ErrorKind(500, "server_error"),
    "engine_dead": ErrorKind(500, "server_error"),
    "template_unavailable": ErrorKind(500, "server_error"),
    "internal_error": ErrorKind(500, "server_error"),
    "unsupported_transfer": ErrorKind(501, "invalid_request_error"),
    "state_unavailable": ErrorKind(501, "server_error"),
    "not_ready": ErrorKind(503, "server_error", retry_after=2),
    "unhealthy": ErrorKind(503, "server_error", retry_after=2),
    "draining": ErrorKind(503, "server_error", retry_after=5),
    "request_timeout": ErrorKind(504, "server_error"),
    "storage_full": ErrorKind(507, "server_error"),
}


class ErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong; `param` names the request's field at fault, with the index in a list."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success. `detail` is a copy of the message for clients
    of Jina and Voyage."""

    error: ErrorDetail
    detail: str


class APIError(Exception):
    """Ends a request with the status that `code` stands for."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code: ErrorCode = code
        self.message = message
        self.param = param
        kind = ERRORS[code]
        self.status = kind.status
        self.headers = dict(headers or {})
        if kind.retry_after is not None:
            self.headers.setdefault("retry-after", str(kind.retry_after))

    @classmethod
    def from_engine(cls, error: EngineError | RefusalError) -> "APIError":
        """The engine's codes are a subset of the server's. If the engine knows how long the request
        would have waited, this time becomes `retry-after`."""
        wait = error.retry_after
        headers = None if wait is None else {"retry-after": str(max(1, math.ceil(wait)))}
        return cls(error.code, error.message, error.param, headers)

    @classmethod
    def internal(cls, cause: Exception) -> "APIError":
        """For an unexpected exception, whose message goes only to the log."""
        error = cls("internal_error", "the server failed; its log has the reason")
        error.__cause__ = cause
        return error

    @classmethod
    def from_status(cls, status: int, headers: dict[str, str] | None = None) -> "APIError":
        """For an HTTP status that the framework chose (unknown route, wrong method)."""
        code: ErrorCode = "not_found" if status == HTTPStatus.NOT_FOUND else "invalid_request"
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            code = "method_not_allowed"
        elif status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            code = "internal_error"
        return cls(code, HTTPStatus(status).phrase, headers=headers)

    @classmethod
    def of_two_names(cls, field: str, other: str) -> "APIError":
        """For a request that gives a field under both of its names, with different values."""
        message = f"{other}: is another name of {field}, which is also given; give only one of them"
        return cls("invalid_request", message, other)

    def body(self) -> bytes:
        """The error as JSON."""
        kind = ERRORS[self.code]
        error = ErrorDetail(self.message, kind.type, self.param, self.code)
        return msgspec.json.encode(ErrorBody(error, detail=self.message))
