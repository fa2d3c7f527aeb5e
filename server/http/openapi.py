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
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, get_args

import msgspec
from fastapi import FastAPI, Response
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
    arguments: JSON = {"response_class": Response, "tags": [*endpoint.tags]}
    arguments |= endpoint.operation.arguments
    return APIRoute(endpoint.path, endpoint.handler, methods=[endpoint.method], **arguments)


def describe(app: FastAPI, endpoints: Sequence[Endpoint]) -> None:
    """Make `app` describe the bodies, answers and parameters of its endpoints."""
    describe_routes = app.openapi

    @cache
    def openapi() -> JSON:
        schema, structs = describe_routes(), structs_of(endpoints)
        schema["components"] = {"schemas": components(structs), "securitySchemes": {"key": _KEY}}
        schema["security"] = [{"key": []}, {}]
        for endpoint in endpoints:
            found = schema["paths"].get(endpoint.path_format, {}).get(endpoint.method.lower())
            if found is not None:
                _complete(found, endpoint.operation, structs)
        return schema

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
            schema["description"] = _LINK.sub(r"\1", texts[field])
    return schemas


def parameters(operation: Operation) -> list[JSON]:
    path = {"in": "path", "required": True, "schema": {"type": "string"}}
    found = [{"name": name, "description": text, **path} for name, text in operation.path.items()]
    if operation.query is not None:
        name = operation.query.__name__
        for field, schema in components({name: operation.query})[name]["properties"].items():
            # A default of null is none.
            given = {key: value for key, value in schema.items() if value is not None}
            text = given.pop("description")
            found.append({"name": field, "description": text, "in": "query", "schema": given})
    return found


def field_texts(struct: Struct) -> dict[str, str]:
    """The descriptions of a struct's fields by their names in JSON, inherited ones too."""
    found: dict[str, list[str]] = {}
    for kind in reversed(struct.__mro__):
        if issubclass(kind, msgspec.Struct):
            found |= _strings_in(kind.__module__).get(kind.__name__, {})
    tag = struct.__struct_config__.tag_field
    of_tag = {} if tag is None else {tag: "Which of the forms this is."}
    fields = msgspec.structs.fields(struct)
    return of_tag | {field.encode_name: found[field.name][0] for field in fields}


def examples_of(request: Struct) -> list[JSON]:
    strings = _strings_in(request.__module__)[request.__name__][""]
    return [json.loads(text[len(_EXAMPLE) :]) for text in strings if text.startswith(_EXAMPLE)]


@cache
def _strings_in(module: str) -> dict[str, dict[str, list[str]]]:
    """The strings in the classes of a module, by class and field, those of no field by "". Python
    itself keeps none."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: _strings(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _strings(node: ast.ClassDef) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    above: list[str] = []
    for statement in node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(name)):
                above.append(name)
            case ast.Expr(ast.Constant(str(text))):
                for name in above or [""]:
                    found.setdefault(name, []).append(" ".join(text.split()))
                above.clear()
            case _:
                pass
    return found


def _complete(described: JSON, operation: Operation, structs: dict[str, Struct]) -> None:
    """Add parameters, examples of the bodies, and the known options that these do not serve."""
    if found := parameters(operation):
        described["parameters"] = found
    body = described.get("requestBody", {}).get("content", {}).get("application/json")
    if body is None:
        return
    # A schema for each dialect.
    refs = [schema["$ref"] for schema in body["schema"].get("anyOf", [body["schema"]])]
    requests = [structs[ref.rpartition("/")[2]] for ref in refs]
    examples = [example for request in requests for example in examples_of(request)]
    body["examples"] = {f"Example {n}": {"value": value} for n, value in enumerate(examples, 1)}
    table = known_options()
    refused = [name for each in requests for name in table.of(each.__name__, "refused")]
    if refused:
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(refused))
        text = f"Known, not served (400, unless null or neutral): {names}."
        described["description"] = f"{described.get('description', '')}\n\n{text}".strip()
