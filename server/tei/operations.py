"""What TEI's routes say of themselves in the OpenAPI description."""

from typing import Any

import msgspec

from server.http.openapi import operation
from server.schemas.rerank import Reranking, RerankRequest
from server.schemas.tei import Rank, RerankTextsRequest, TEIError
from server.tei.tei_errors import STATUSES

JSON = dict[str, Any]


def tei_operation(answer: JSON, body: type[msgspec.Struct] | None = None) -> JSON:
    """The keyword arguments of FastAPI's decorators; `answer` is a JSON schema."""
    described = operation(TEIError, body)
    success = {"description": "Success", "content": {"application/json": {"schema": answer}}}
    error = {"application/json": {"schema": ref(TEIError)}}
    failures = {
        status: {"description": "TEI's error", "content": error}
        for status in (STATUSES if body else (424, 503))
    }
    return {**described, "responses": {200: success, **failures}}


def either_operation() -> JSON:
    """Those of `/rerank`, whose bodies and answers are TEI's or our own."""
    ours, theirs = (
        operation(Reranking, RerankRequest),
        tei_operation(list_of(ref(Rank)), RerankTextsRequest),
    )
    statuses = sorted({*ours["responses"], *theirs["responses"]})
    responses = {
        status: _either(*(side["responses"].get(status) for side in (ours, theirs)))
        for status in statuses
    }
    body = _either(*(side["openapi_extra"]["requestBody"] for side in (ours, theirs)))
    return {"responses": responses, "openapi_extra": {"requestBody": body}}


def _either(one: JSON | None, other: JSON | None) -> JSON:
    if one is None or other is None:
        return one or other or {}
    schemas = [side["content"]["application/json"]["schema"] for side in (one, other)]
    return {**one, "content": {"application/json": {"schema": {"anyOf": schemas}}}}


def ref(struct: type[msgspec.Struct]) -> JSON:
    """The schema of a struct that the description holds."""
    return {"$ref": f"#/components/schemas/{struct.__name__}"}


def list_of(items: JSON) -> JSON:
    """The schema of a list."""
    return {"type": "array", "items": items}


ANYTHING: JSON = {}
NUMBERS = list_of({"type": "number"})
