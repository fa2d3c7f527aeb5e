"""`GET /status`: what the status page shows, for programs too."""

from fastapi import Request, Response

from server.http.openapi import operation
from server.metrics.request_record import record_of
from server.schemas.status import Status
from server.service.endpoint import Endpoint
from server.service.service import json_answer, service_of
from server.service.status_report import status_of

STATUS = Endpoint("GET", "/status", operation(Status), order=290)


@STATUS.answered_by
async def status(request: Request) -> Response:
    """The daemon's state as JSON: models, load, counts since its start."""
    record_of(request).is_probe = True
    answer = json_answer(status_of(service_of(request)))
    answer.headers["cache-control"] = "no-store"
    return answer
