"""Writes what /openapi.json says of fields, and its examples of requests, from the pages of docs.

People write in `docs/api.md` and `docs/objects.md` alone: a table's row describes a field, and a
curl command is an example. A fence ```json request=/path holds an example that the demo models
cannot answer.
"""

import argparse
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from server.api.tei import protocol as tei
from server.daemon.application import all_endpoints
from server.http.openapi import FILE, Descriptions, components
from server.schemas.known_options import known_options
from tools.pages import cells, names, section

_ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
_COMMAND = re.compile(r"```sh\n(curl .*?)```", re.DOTALL)
_BODY = re.compile(r"```json request=(\S+)\n(.*?)```", re.DOTALL)
_HOST = "http://127.0.0.1:8000"
_MOST_EXAMPLES = 2
_NO_DEFAULTS = {"", "required", "none"}


def main() -> None:
    """The command line."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    FILE.write_bytes(encoded(from_pages()))


def encoded(descriptions: Descriptions) -> bytes:
    """The file's content."""
    content = msgspec.to_builtins(descriptions)
    return (json.dumps(content, ensure_ascii=False, indent=1, sort_keys=True) + "\n").encode()


def from_pages() -> Descriptions:
    """What the pages say. Raises KeyError for a field of which they say nothing."""
    api = (_ROOT / "docs/api.md").read_text()
    objects = (_ROOT / "docs/objects.md").read_text()
    described = _requests(api) | _objects(api) | _objects(objects)
    fields = {
        name: {field: described[name][field] for field in component["properties"]}
        for name, component in components(each.operation for each in all_endpoints()).items()
        if "properties" in component
    }
    parameters = {name: texts for name, texts in described.items() if " /" in name}
    return Descriptions(fields, parameters, _examples(api))


def _requests(page: str) -> dict[str, dict[str, str]]:
    """The fields of each request with a section of its own, and of TEI's."""
    found: dict[str, dict[str, str]] = {}
    for request, (path, *_) in known_options().endpoints.items():
        if hasattr(tei, request):
            found[request] = _tei_fields(page, request)
        elif f"\n## `POST {path}`\n" in page:
            found[request] = {
                name: _text(default, meaning)
                for first, _, default, meaning in _rows(section(page, f"`POST {path}`"))
                for name in names(first)
            }
    return found


def _tei_fields(page: str, request: str) -> dict[str, str]:
    """The rows for any path of the request; where several differ, each with its path."""
    paths = known_options().endpoints[request]
    of_field: dict[str, dict[str, str]] = {}
    endpoint = ""
    for first, field, _, default, meaning in _rows(section(page, "TEI")):
        endpoint = first or endpoint
        named, but = names(endpoint), endpoint.startswith("all")
        matching = [path for path in paths if (path in named) is not but]
        for name in names(field) if matching else ():
            of_field.setdefault(name, {})[" and ".join(matching)] = _text(default, meaning)
    return {
        name: "; ".join(f"{path}: {text}" for path, text in texts.items())
        if len(texts) > 1
        else next(iter(texts.values()))
        for name, texts in of_field.items()
    }


def _objects(page: str) -> dict[str, dict[str, str]]:
    """The fields of the components that each section names."""
    found: dict[str, dict[str, str]] = {}
    for title, text in re.findall(r"(?m)^### (.*)\n((?:(?!##).*\n)*)", page):
        fields = {name: _sentence(row[-1]) for row in _rows(text) for name in names(row[0])}
        found |= dict.fromkeys(names(title), fields)
    return found


def _examples(page: str) -> dict[str, list[Any]]:
    """The first bodies of the page by the type of request that takes them."""
    types = {kind.__name__: kind for each in all_endpoints() for kind in each.operation.types}
    found: dict[str, list[Any]] = {}
    for path, body in _bodies(page):
        for request, paths in known_options().endpoints.items():
            if path in paths and _takes(types[request], body):
                found.setdefault(request, []).append(json.loads(body))
                break
        else:
            raise ValueError(f"no request to {path} takes the example {body}")
    return {request: bodies[:_MOST_EXAMPLES] for request, bodies in found.items()}


def _bodies(page: str) -> Iterator[tuple[str, str]]:
    """Paths and bodies."""
    for command in _COMMAND.findall(page):
        words = shlex.split(command)
        path = next(word for word in words if word.startswith(_HOST)).removeprefix(_HOST)
        if "-d" in words:
            yield path, words[words.index("-d") + 1]
    yield from _BODY.findall(page)


def _takes(request: type[msgspec.Struct], body: str) -> bool:
    if not json.loads(body).keys() <= set(request.__struct_fields__):
        return False
    msgspec.json.decode(body, type=request)
    return True


def _rows(text: str) -> Iterator[list[str]]:
    """The cells of the first table, row by row, without its head."""
    table = re.search(r"(?m)(?:^\|.*\n)+", text)
    for line in table[0].splitlines()[2:] if table else ():
        yield cells(line)


def _text(default: str, meaning: str) -> str:
    sentences = [_sentence(meaning)] if meaning else []
    if default not in _NO_DEFAULTS:
        sentences.append(f"Default: {_plain(default)}.")
    return " ".join(sentences)


def _sentence(cell: str) -> str:
    text = _plain(cell).rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."


def _plain(cell: str) -> str:
    """Without links: their targets are in the pages."""
    return _LINK.sub(r"\1", cell)


if __name__ == "__main__":
    main()
