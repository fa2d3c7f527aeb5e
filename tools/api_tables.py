"""Prints what the structs say of their fields into the tables of docs/api.md and docs/objects.md.

A comment above a table names structs, `fields of A, B`, or an endpoint, `parameters of GET /path`.
The table's head says which columns it has.
"""

import argparse
import json
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from server.daemon.application import all_endpoints
from server.http.openapi import field_texts, parameters, structs_of
from server.schemas.known_options import known_options

PAGES = [Path(__file__).parents[1] / "docs" / name for name in ("api.md", "objects.md")]
TABLE = re.compile(r"(<!-- (?:fields|parameters) of (.*) -->\n\n)(\|.*\n\|.*\n)(?:\|.*\n)*")
_DEFAULT = re.compile(r"(.*?) ?Default: (.*)\.")


_ENDPOINTS = all_endpoints()
_STRUCTS = structs_of(_ENDPOINTS)


class _Field(NamedTuple):
    """A field's name and the cells beside it."""

    name: str
    type: str
    default: str
    meaning: str

    def in_columns(self, columns: list[str]) -> "_Field":
        """The field in a table that may lack columns: there its meaning names the default."""
        meaning = self.meaning
        if "default" not in columns and self.default not in ("none", "required"):
            meaning = f"{meaning} Default: {self.default}.".strip()
        kind = self.type if "type" in columns else ""
        return _Field(self.name, kind, self.default if "default" in columns else "", meaning)


def main() -> None:
    """The command line."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    for page in PAGES:
        page.write_text(printed(page.read_text()))


def printed(page: str) -> str:
    """A page with the tables that the structs and endpoints have now."""
    return TABLE.sub(lambda found: found[1] + found[3] + "".join(_lines(found[2], found[3])), page)


def _lines(names: str, head: str) -> Iterator[str]:
    columns = [cell.strip() for cell in head.split("\n", maxsplit=1)[0][1:-1].split("|")]
    shown = ""
    for endpoints, fields in _sections(names.split(", "), columns).items():
        for (default, meaning), alike in groupby(fields, lambda field: field[2:]):
            named, types = zip(*(field[:2] for field in alike), strict=True)
            cells = {
                "endpoint": "" if endpoints == shown else endpoints,
                "type": ", ".join(dict.fromkeys(types)),
                "default": default,
                **dict.fromkeys(("field", "parameter"), ", ".join(f"`{name}`" for name in named)),
                **dict.fromkeys(("range, meaning", "meaning", ""), meaning),
            }
            shown = endpoints
            yield f"| {' | '.join(cells[column] for column in columns)} |\n".replace("  ", " ")


def _sections(names: list[str], columns: list[str]) -> dict[str, list[_Field]]:
    """Fields by the paths of the requests that have them; those of other structs by none."""
    endpoints = known_options().endpoints
    paths: dict[_Field, list[str]] = {}
    for name in names:
        for field in _fields(name):
            paths.setdefault(field.in_columns(columns), []).extend(endpoints.get(name, ()))
    all_paths = [path for name in names for path in endpoints.get(name, ())]
    sections: dict[str, list[_Field]] = {}
    for field, of_field in paths.items():
        text = ", ".join(f"`{path}`" for path in of_field)
        sections.setdefault("all" if of_field == all_paths else text, []).append(field)
    return sections


def _fields(name: str) -> Iterator[_Field]:
    """Those of a struct, of a request its own before the inherited ones, or the parameters of an
    endpoint."""
    if " " in name:
        endpoint = next(each for each in _ENDPOINTS if f"{each.method} {each.path_format}" == name)
        for each in parameters(endpoint.operation):
            yield _Field(each["name"], "", "none", each["description"])
        return
    struct = _STRUCTS[name]
    schema, texts = msgspec.json.schema_components([struct])[1][name], field_texts(struct)
    inherited = field_texts(struct.__mro__[1]) if name in known_options().endpoints else {}
    for field in sorted(texts, key=lambda field: field in inherited):
        found = _DEFAULT.fullmatch(texts[field])
        meaning, default = found.groups() if found else (texts[field], "none")
        if field in schema.get("required", ()):
            default = "required"
        *others, last = dict.fromkeys(_kinds(schema["properties"][field])) or ["null"]
        yield _Field(field, f"{', '.join(others)} or {last}" if others else last, default, meaning)


def _kinds(schema: dict[str, Any], *, many: bool = False) -> Iterator[str]:
    """The types of the values that a schema takes, but for null."""
    if "anyOf" in schema:
        for each in schema["anyOf"]:
            yield from _kinds(each, many=many)
    elif schema.get("type") == "array":
        for kind in _kinds(schema.get("items", {}), many=True):
            yield f"lists of {kind}" if many else kind
    elif not many and len(schema.get("enum", ())) in (1, 2):
        yield from (f"`{json.dumps(value)}`" for value in schema["enum"])
    else:
        kinds = schema.get("type", "string" if "enum" in schema else "object")
        for kind in [kinds] if isinstance(kinds, str) else kinds:
            if kind != "null":
                yield f"{kind}s" if many else kind


if __name__ == "__main__":
    main()
