"""The OpenAPI document. Bodies and answers are msgspec structs, which FastAPI cannot read.

A string under a field of a struct describes it, and the fields directly above that have no string
of their own. Its links are those of docs/api.md. A string that begins with `Example: `, before the
fields of a request, is a body in JSON.
"""

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple, get_args

import msgspec
from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from server.schemas.known_options import known_options
from server.service.endpoint import REF, Endpoint, Operation

Struct = type[msgspec.Struct]
JSON = dict[str, Any]

# Required only if the daemon has API keys.
_KEY = {"type": "http", "scheme": "bearer"}
_EXAMPLE = "Example: "
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


def route_of(endpoint: Endpoint) -> APIRoute:
    """FastAPI's route, which describes the endpoint and matches its path."""
    arguments: JSON = {"response_class": Response, **endpoint.operation.arguments}
    return APIRoute(endpoint.path, endpoint.handler, methods=[endpoint.method], **arguments)


def describe(app: FastAPI, endpoints: Iterable[Endpoint]) -> None:
    """Make `app` describe the bodies, answers and parameters of its endpoints."""
    described = tuple(endpoints)

    def openapi() -> JSON:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
            )
            structs = structs_of(described)
            schemas = components(structs)
            schema["components"] = {"schemas": schemas, "securitySchemes": {"key": _KEY}}
            schema["security"] = [{"key": []}, {}]
            for endpoint in described:
                found = schema["paths"].get(endpoint.path_format, {}).get(endpoint.method.lower())
                if found is not None:
                    _complete(found, endpoint.operation, structs)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi


def structs_of(endpoints: Iterable[Endpoint]) -> dict[str, Struct]:
    """The structs in the endpoints' bodies and answers, at any depth, by name."""
    found: dict[str, Struct] = {}
    waiting: list[Any] = [kind for each in endpoints for kind in each.operation.types]
    while waiting:
        kind = waiting.pop()
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            waiting += get_args(kind)
        elif kind.__name__ not in found:
            found[kind.__name__] = kind
            waiting += [field.type for field in msgspec.structs.fields(kind)]
    return found


def components(structs: dict[str, Struct]) -> JSON:
    """The schemas of the structs by name, with descriptions of their fields."""
    schemas = msgspec.json.schema_components(structs.values(), ref_template=REF)[1]
    for name, struct in structs.items():
        texts = field_texts(struct)
        for field, schema in schemas[name].get("properties", {}).items():
            schema["description"] = _plain(texts[field])
    return schemas


def parameters(operation: Operation) -> list[JSON]:
    """The parameters of an operation's path and query."""
    text = {"in": "path", "required": True, "schema": {"type": "string"}}
    found = [{"name": name, **text, "description": of} for name, of in operation.path.items()]
    if operation.query is not None:
        texts = field_texts(operation.query)
        schemas = msgspec.json.schema_components([operation.query])[1]
        for name, schema in schemas[operation.query.__name__]["properties"].items():
            # Null is a default only where the parameter is left out.
            of_value = {key: value for key, value in schema.items() if value is not None}
            described = {"in": "query", "schema": of_value, "description": _plain(texts[name])}
            found.append({"name": name, **described})
    return found


class _Texts(NamedTuple):
    """The strings in a class: descriptions of fields, and examples."""

    fields: dict[str, str]
    examples: list[JSON]


def field_texts(struct: Struct) -> dict[str, str]:
    """The descriptions of a struct's fields by their names in JSON, inherited ones too."""
    found: dict[str, str] = {}
    for kind in reversed(struct.__mro__):
        if issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct:
            found |= _texts_in(kind.__module__)[kind.__name__].fields
    by_name = {field.encode_name: found[field.name] for field in msgspec.structs.fields(struct)}
    tag = struct.__struct_config__.tag_field
    return by_name if tag is None else {tag: "Which of the forms this is.", **by_name}


def examples_of(request: Struct) -> list[JSON]:
    """The example bodies on a request's struct."""
    return _texts_in(request.__module__)[request.__name__].examples


@cache
def _texts_in(module: str) -> dict[str, _Texts]:
    """The strings in each class of a module: Python keeps none but the class's docstring."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: _texts(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _texts(node: ast.ClassDef) -> _Texts:
    found, above = _Texts({}, []), list[str]()
    for statement in node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(name)):
                above.append(name)
            case ast.Expr(ast.Constant(str(string))):
                text = " ".join(string.split())
                if text.startswith(_EXAMPLE):
                    found.examples.append(json.loads(text.removeprefix(_EXAMPLE)))
                found.fields.update(dict.fromkeys(above, text))
                above.clear()
            case _:
                above.clear()
    return found


def _plain(text: str) -> str:
    """A text without links."""
    return _LINK.sub(r"\1", text)


def _complete(described: JSON, operation: Operation, structs: dict[str, Struct]) -> None:
    """Add an operation's parameters, examples of its bodies, and the known options that these do
    not serve."""
    found = parameters(operation)
    if found:
        described["parameters"] = found
    body = described.get("requestBody", {}).get("content", {}).get("application/json")
    if body is None:
        return
    # A schema for each dialect.
    refs = [schema["$ref"] for schema in body["schema"].get("anyOf", [body["schema"]])]
    requests = [structs[ref.rpartition("/")[2]] for ref in refs]
    examples = [example for request in requests for example in examples_of(request)]
    body["examples"] = {
        f"Example {number}": {"value": value} for number, value in enumerate(examples, 1)
    }
    table = known_options()
    refused = dict.fromkeys(
        name for each in requests for name in table.of(each.__name__, "refused")
    )
    if refused:
        names = ", ".join(f"`{name}`" for name in refused)
        text = f"Known, not served (400, unless null or neutral): {names}."
        described["description"] = f"{described.get('description', '')}\n\n{text}".strip()
