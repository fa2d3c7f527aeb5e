"""TEI's endpoints in the OpenAPI description."""

from typing import Any

import msgspec

from server.schemas.tei import TEIError
from server.service.endpoint import REF, Operation, operation, ref
from server.tei.tei_errors import STATUSES

JSON = dict[str, Any]


def tei_operation(*answers: Any, body: type[msgspec.Struct] | None = None) -> Operation:
    """An endpoint's answer, of one type or another, and its body."""
    described = operation(TEIError, body)
    schemas, _ = msgspec.json.schema_components(answers, ref_template=REF)
    schema: JSON = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    success = {"description": "Success", "content": {"application/json": {"schema": schema}}}
    error = {"application/json": {"schema": ref(TEIError)}}
    failures = {
        status: {"description": "TEI's error", "content": error}
        for status in (STATUSES if body else (424, 503))
    }
    return Operation(
        arguments={**described.arguments, "responses": {200: success, **failures}},
        types=(*described.types, *answers),
    )


def either_operation(own: Operation, tei: Operation) -> Operation:
    """That of a path whose bodies and answers are our own or TEI's."""
    ours, theirs = own.arguments, tei.arguments
    statuses = sorted({*ours["responses"], *theirs["responses"]})
    responses = {
        status: _either(*(side["responses"].get(status) for side in (ours, theirs)))
        for status in statuses
    }
    body = _either(*(side["openapi_extra"]["requestBody"] for side in (ours, theirs)))
    return Operation(
        arguments={"responses": responses, "openapi_extra": {"requestBody": body}},
        types=(*own.types, *tei.types),
    )


def _either(one: JSON | None, other: JSON | None) -> JSON:
    if one is None or other is None:
        return one or other or {}
    schemas = [side["content"]["application/json"]["schema"] for side in (one, other)]
    return {**one, "content": {"application/json": {"schema": {"anyOf": schemas}}}}
