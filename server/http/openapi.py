"""The OpenAPI description: bodies and answers are msgspec structs, which FastAPI cannot read."""

from collections.abc import Iterable
from typing import Any

import msgspec
from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from server.errors import ERRORS, ErrorBody
from server.http.descriptions import add_descriptions
from server.service.endpoint import Endpoint, Operation

REF = "#/components/schemas/{name}"
# Required only if the daemon has API keys.
_KEY = {"type": "http", "scheme": "bearer"}


def operation(
    answer: type[msgspec.Struct] | None,
    body: type[msgspec.Struct] | None = None,
    *,
    chunk: type[msgspec.Struct] | None = None,
    form: type[msgspec.Struct] | None = None,
    query: type[msgspec.Struct] | None = None,
) -> Operation:
    """An endpoint's answer, None for whatever a file holds, and body, which may be a `form`. A
    streamed answer consists of `chunk`s; `query` holds the parameters of the URL."""
    content: dict[str, Any] = (
        {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
        if answer is None
        else {"application/json": {"schema": ref(answer)}}
    )
    if chunk is not None:
        content["text/event-stream"] = {"schema": _event(chunk)}
    responses: dict[int | str, dict[str, Any]] = {
        200: {"description": "Success", "content": content}
    }
    error = {"application/json": {"schema": ref(ErrorBody)}}
    if body is None:
        responses["default"] = {"description": "Any error", "content": error}
    else:
        for status in sorted({kind.status for kind in ERRORS.values()}):
            responses[status] = {"description": _codes(status), "content": error}
    return Operation(
        arguments={"responses": responses, "openapi_extra": _body(body, form) | _query(query)},
        types=tuple(kind for kind in (answer, body, chunk, form, ErrorBody) if kind is not None),
    )


def route_of(endpoint: Endpoint) -> APIRoute:
    """FastAPI's route, which describes the endpoint and matches its path."""
    arguments: dict[str, Any] = {"response_class": Response, **endpoint.operation.arguments}
    route = APIRoute(endpoint.path, endpoint.handler, methods=[endpoint.method], **arguments)
    if route.param_convertors:
        text = {"in": "path", "required": True, "schema": {"type": "string"}}
        parameters = [{"name": name, **text} for name in route.param_convertors]
        route.openapi_extra = {**(route.openapi_extra or {}), "parameters": parameters}
    return route


def _body(body: type[msgspec.Struct] | None, form: type[msgspec.Struct] | None) -> dict[str, Any]:
    forms = {"application/json": body, "multipart/form-data": form}
    content = {kind: {"schema": ref(struct)} for kind, struct in forms.items() if struct}
    return {"requestBody": {"required": True, "content": content}} if content else {}


def _query(query: type[msgspec.Struct] | None) -> dict[str, Any]:
    if query is None:
        return {}
    schema = msgspec.json.schema_components([query])[1][query.__name__]
    found = [
        {"name": name, "in": "query", "schema": of_one}
        for name, of_one in schema["properties"].items()
    ]
    return {"parameters": found}


def components(operations: Iterable[Operation]) -> dict[str, Any]:
    """The schemas of the types to which operations refer, and of their parts, by name."""
    types = dict.fromkeys(kind for operation in operations for kind in operation.types)
    return msgspec.json.schema_components(types, ref_template=REF)[1]


def describe(app: FastAPI, operations: Iterable[Operation]) -> None:
    """Make `app` describe the types to which its operations refer."""
    described = tuple(operations)

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
            )
            schemas = components(described)
            schema["components"] = {"schemas": schemas, "securitySchemes": {"key": _KEY}}
            schema["security"] = [{"key": []}, {}]
            add_descriptions(schema)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi


def ref(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema of a struct that the description holds."""
    return {"$ref": REF.format(name=struct.__name__)}


def _event(chunk: type[msgspec.Struct]) -> dict[str, Any]:
    """One event of a stream: a chunk or an error; `[DONE]` at the end of a stream without error."""
    json = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [ref(chunk), ref(ErrorBody)]},
    }
    data = {"anyOf": [{"const": "[DONE]"}, json]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _codes(status: int) -> str:
    codes = [code for code, kind in ERRORS.items() if kind.status == status]
    return "`code`: " + ", ".join(codes)
