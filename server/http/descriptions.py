"""What fields mean, and examples of requests: from the pages of docs into the OpenAPI document."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from server.schemas.known_options import known_options

FILE = Path(__file__).with_suffix(".json")


class Descriptions(msgspec.Struct, frozen=True):
    """`fields`: component -> field -> text. `parameters`: the same by method and path. `examples`:
    type of request -> bodies.

    `python -m tools.descriptions` writes them from the pages; a test compares.
    """

    fields: dict[str, dict[str, str]]
    parameters: dict[str, dict[str, str]]
    examples: dict[str, list[Any]]


def descriptions() -> Descriptions:
    """Those that came with the daemon."""
    return msgspec.json.decode(FILE.read_bytes(), type=Descriptions)


def add_descriptions(schema: dict[str, Any]) -> None:
    """Describe the fields of an OpenAPI document's components; give each operation the examples of
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
