"""The OpenAPI document. Bodies and answers are msgspec structs, which FastAPI cannot read.

What their fields mean, and examples of requests, come from the pages of docs.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from server.schemas.known_options import known_options
from server.service.endpoint import REF, Endpoint, Operation

FILE = Path(__file__).with_name("descriptions.json")
# Required only if the daemon has API keys.
_KEY = {"type": "http", "scheme": "bearer"}


def route_of(endpoint: Endpoint) -> APIRoute:
    """FastAPI's route, which describes the endpoint and matches its path."""
    arguments: dict[str, Any] = {"response_class": Response, **endpoint.operation.arguments}
    route = APIRoute(endpoint.path, endpoint.handler, methods=[endpoint.method], **arguments)
    if route.param_convertors:
        text = {"in": "path", "required": True, "schema": {"type": "string"}}
        parameters = [{"name": name, **text} for name in route.param_convertors]
        route.openapi_extra = {**(route.openapi_extra or {}), "parameters": parameters}
    return route


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
            _add_descriptions(schema)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi


class Descriptions(msgspec.Struct, frozen=True):
    """`fields`: component -> field -> text. `parameters`: the same by method and path. `examples`:
    type of request -> bodies.

    `python -m tools.descriptions` writes them from the pages; a test compares.
    """

    fields: dict[str, dict[str, str]]
    parameters: dict[str, dict[str, str]]
    examples: dict[str, list[Any]]


def descriptions() -> Descriptions:
    """The descriptions that came with the daemon."""
    return msgspec.json.decode(FILE.read_bytes(), type=Descriptions)


def _add_descriptions(schema: dict[str, Any]) -> None:
    """Describe the fields of an OpenAPI document's components. Give each operation the examples of
    its requests, and the list of known options that these do not serve."""
    told = descriptions()
    for name, component in schema["components"]["schemas"].items():
        for field, of_field in component.get("properties", {}).items():
            of_field["description"] = told.fields[name][field]
    for path, item in schema["paths"].items():
        for method, operation in item.items():
            for parameter in operation.get("parameters", ()):
                texts = told.parameters[f"{method.upper()} {path}"]
                parameter["description"] = texts[parameter["name"]]
            requests = list(_requests(operation))
            _add_examples(operation, [body for each in requests for body in told.examples[each]])
            _add_refused(operation, requests)


def _requests(operation: dict[str, Any]) -> Iterator[str]:
    """The types of its body: one for each dialect."""
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body is not None:
        for dialect in body["schema"].get("anyOf", [body["schema"]]):
            yield dialect["$ref"].rpartition("/")[2]


def _add_examples(operation: dict[str, Any], bodies: list[Any]) -> None:
    if bodies:
        operation["requestBody"]["content"]["application/json"]["examples"] = {
            f"Example {number}": {"value": body} for number, body in enumerate(bodies, 1)
        }


def _add_refused(operation: dict[str, Any], requests: list[str]) -> None:
    table = known_options()
    refused = dict.fromkeys(name for each in requests for name in table.of(each, "refused"))
    if refused:
        names = ", ".join(f"`{name}`" for name in refused)
        text = f"Known, not served (400, unless null or neutral): {names}."
        operation["description"] = f"{operation.get('description', '')}\n\n{text}".strip()
