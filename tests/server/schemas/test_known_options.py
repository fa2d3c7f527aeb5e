"""The table of known options is whole, and it is what bodies are read by."""

import importlib
import pkgutil
from collections import Counter
from typing import Any

import msgspec
import pytest

import server.api
import server.cohere
import server.pooling
import server.tei
from server.errors import APIError
from server.http.body import Body
from server.schemas.known_options import KnownOption, known_options

TABLE = known_options()


def bodies() -> dict[str, Body[Any]]:
    """Every body that an endpoint reads, by the name of its type."""
    packages = (server.api, server.cohere, server.pooling, server.tei)
    modules = [
        importlib.import_module(f"{package.__name__}.{module.name}")
        for package in packages
        for module in pkgutil.iter_modules(package.__path__)
    ]
    found = [value for module in modules for value in vars(module).values()]
    return {body._struct.__name__: body for body in found if isinstance(body, Body)}


BODIES = bodies()
REFUSED = [(name, path) for name in TABLE.endpoints for path in TABLE.of(name, "refused")]


def rows(request: str) -> list[tuple[str, KnownOption]]:
    return [
        row for fate in ("obeyed", "accepted", "refused") for row in TABLE.of(request, fate).items()
    ]


def test_the_table_is_about_every_type_of_request():
    assert set(TABLE.endpoints) == set(BODIES)
    assert {name for group in TABLE.groups for name in group.requests} == set(BODIES)


@pytest.mark.parametrize("request_type", BODIES)
def test_every_field_is_a_row_and_every_served_row_a_field(request_type):
    fields = set(BODIES[request_type]._struct.__struct_fields__) - {"model"}
    served = {*TABLE.of(request_type, "obeyed"), *TABLE.of(request_type, "accepted")}
    assert {path.split(".")[0] for path in served} == fields
    assert not fields & set(TABLE.of(request_type, "refused"))


@pytest.mark.parametrize("request_type", BODIES)
def test_a_name_has_one_row_and_an_example_that_is_not_neutral(request_type):
    found = rows(request_type)
    assert [name for name, times in Counter(name for name, _ in found).items() if times > 1] == []
    for name, option in found:
        assert option.by, name
        assert option.example is not None, name
        assert option.example not in option.neutral, name


def placed(path: str, value: object) -> dict:
    """A body that has nothing but `value` at a dotted path, in the first of the messages."""
    for name in reversed(path.split(".")):
        value = {name: [value] if name == "messages" and "." in path else value}
    assert isinstance(value, dict)
    return value


def nested(body: dict, other: dict) -> dict:
    """Both, and both of what has one name."""
    both = {name: {**body[name], **value} for name, value in other.items() if name in body}
    return {**body, **other, **both}


def complaint(request_type: str, body: dict, *, strictly: bool) -> tuple[str | None, str]:
    """The field at fault and the message; empty where nothing is."""
    try:
        BODIES[request_type].decode(msgspec.json.encode(body), strictly=strictly)
    except APIError as error:
        assert error.status == 400
        return error.param, error.message
    return None, ""


@pytest.mark.parametrize(("request_type", "path"), REFUSED)
@pytest.mark.parametrize("strictly", [False, True])
def test_what_is_refused_is_named_and_what_is_neutral_is_not(request_type, path, strictly):
    option = TABLE.of(request_type, "refused")[path]
    named = path.replace("messages.", "messages[0].")
    for value in (option.example, msgspec.Raw(b"1e400"), {"a": [1]}):
        body = nested(option.beside, placed(path, value))
        param, message = complaint(request_type, body, strictly=strictly)
        assert (param, message[: len(named) + 9]) == (named, f"{named} is known"), message
    for value in (None, *option.neutral):
        body = nested(option.beside, placed(path, value))
        param, _ = complaint(request_type, body, strictly=strictly)
        assert param != named
