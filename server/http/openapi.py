"""The OpenAPI description: bodies and answers are msgspec structs, which FastAPI cannot read."""

from collections.abc import Iterable
from typing import Any

import msgspec
from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from server.errors import ERRORS, ErrorBody
from server.http.descriptions import add_descriptions
from server.service.endpoint import Operation

REF = "#/components/schemas/{name}"
# Required only if the daemon has API keys.
_KEY = {"type": "http", "scheme": "bearer"}


def operation(
    answer: type[msgspec.Struct],
    body: type[msgspec.Struct] | None = None,
    *,
    chunk: type[msgspec.Struct] | None = None,
    form: type[msgspec.Struct] | None = None,
    query: type[msgspec.Struct] | None = None,
    parameters: tuple[str, ...] = (),
) -> Operation:
    """An endpoint's answer and body, which may be a `form`. A streamed answer consists of `chunk`s;
    `query` holds the parameters of the URL, and `parameters` are texts in its path."""
    content = {"application/json": {"schema": ref(answer)}}
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
        arguments={
            "responses": responses,
            "openapi_extra": _body(body, form) | _parameters(parameters, query),
        },
        types=tuple(kind for kind in (answer, body, chunk, form, ErrorBody) if kind is not None),
    )


def contents(parameters: tuple[str, ...]) -> Operation:
    """An endpoint whose answer is whatever a file holds."""
    error = {"application/json": {"schema": ref(ErrorBody)}}
    binary = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    responses: dict[int | str, dict[str, Any]] = {
        200: {"description": "Success", "content": binary},
        "default": {"description": "Any error", "content": error},
    }
    arguments = {
        "response_class": Response,
        "responses": responses,
        "openapi_extra": _parameters(parameters, None),
    }
    return Operation(arguments=arguments, types=(ErrorBody,))


def _body(body: type[msgspec.Struct] | None, form: type[msgspec.Struct] | None) -> dict[str, Any]:
    forms = {"application/json": body, "multipart/form-data": form}
    content = {kind: {"schema": ref(struct)} for kind, struct in forms.items() if struct}
    return {"requestBody": {"required": True, "content": content}} if content else {}


def _parameters(path: tuple[str, ...], query: type[msgspec.Struct] | None) -> dict[str, Any]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in path
    ]
    if query is not None:
        schema = msgspec.json.schema_components([query])[1][query.__name__]
        found += [
            {"name": name, "in": "query", "schema": of_one}
            for name, of_one in schema["properties"].items()
        ]
    return {"parameters": found} if found else {}


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


def documented_operations(app: FastAPI) -> set[tuple[str, str]]:
    """Methods and paths that `app` describes, parameters written `{name}`."""
    routes = (route for route in app.routes if isinstance(route, APIRoute))
    described = (route for route in routes if route.include_in_schema)
    return {(method, route.path_format) for route in described for method in route.methods or ()}


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
