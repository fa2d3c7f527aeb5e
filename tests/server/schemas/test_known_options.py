"""The table of known options is whole, and it is what bodies are read by."""

import re
from collections import Counter
from typing import Any, get_args

import msgspec
import pytest

from engine_core.refusal import RefusalError
from server.daemon.application import all_endpoints
from server.http.body import Body
from server.http.openapi import structs_of
from server.schemas.known_options import known_options
from tests.server.schemas.option_examples import entry_for, examples_of

TABLE = known_options()


def bodies() -> dict[str, Body[Any]]:
    """Every body that an endpoint describes, by the name of its type."""
    endpoints = all_endpoints()
    structs = structs_of(endpoints)
    described = [
        each.operation.arguments.get("openapi_extra", {}).get("requestBody", {}).get("content", {})
        for each in endpoints
    ]
    in_json = str([content.get("application/json") for content in described])
    return {name: Body(structs[name]) for name in re.findall(r"schemas/(\w+)", in_json)}


BODIES = bodies()
REFUSED = [(name, path) for name in TABLE.endpoints for path in TABLE.of(name, "refused")]


def test_the_table_is_about_every_type_of_request():
    assert set(TABLE.endpoints) == set(BODIES)
    assert {name for group in TABLE.groups for name in group.requests} == set(BODIES)


def structs_in(kind: Any) -> list[type[msgspec.Struct]]:
    """The structs that values of a type are made of, but for those within these."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [kind]
    return [struct for part in get_args(kind) for struct in structs_in(part)]


def fields_of(
    struct: type[msgspec.Struct], prefix: str = ""
) -> dict[str, msgspec.structs.FieldInfo | None]:
    """Every field at any depth by its dotted path, through lists; None for the tag of a union."""
    found: dict[str, msgspec.structs.FieldInfo | None] = {}
    if struct.__struct_config__.tag is not None:
        found[f"{prefix}{struct.__struct_config__.tag_field}"] = None
    for field in msgspec.structs.fields(struct):
        found[f"{prefix}{field.encode_name}"] = field
        for inner in structs_in(field.type):
            found |= fields_of(inner, f"{prefix}{field.encode_name}.")
    return found


@pytest.mark.parametrize("request_type", BODIES)
def test_every_field_at_any_depth_is_a_row_and_every_served_row_a_field(request_type):
    fields = {*fields_of(BODIES[request_type]._struct)} - {"model"}
    served = {*TABLE.of(request_type, "obeyed"), *TABLE.of(request_type, "accepted")}
    above = {path.rpartition(".")[0] for path in fields if "." in path}
    assert served <= fields
    # A field that holds an object has the rows of the object's fields at least.
    assert fields - above <= served
    assert not fields & set(TABLE.of(request_type, "refused"))


@pytest.mark.parametrize("request_type", BODIES)
def test_objects_whose_entries_have_a_type_are_fields_of_the_body_itself(request_type):
    """Only there a fault of an entry is named by its key."""
    for path, field in fields_of(BODIES[request_type]._struct).items():
        if "." in path and field is not None:
            assert not re.search(r"dict\[(?!str, typing.Any\])", str(field.type)), path


@pytest.mark.parametrize("request_type", BODIES)
def test_a_name_has_one_row_and_an_example_that_is_not_neutral(request_type):
    fates = ("obeyed", "accepted", "refused")
    found = [row for fate in fates for row in TABLE.of(request_type, fate).items()]
    examples = examples_of(request_type)
    assert examples.keys() == dict(found).keys()
    assert [name for name, times in Counter(name for name, _ in found).items() if times > 1] == []
    for name, option in found:
        assert option.by, name
        assert examples[name].example is not None, name
        assert examples[name].example not in option.neutral, name


def placed(body: dict, path: str, value: object) -> tuple[dict, str]:
    """`body` with `value` at a dotted path, and the path with indices; of a list, in the entry for
    it."""
    name, _, rest = path.partition(".")
    if not rest:
        return body | {name: value}, name
    inner = body.get(name, {})
    if isinstance(inner, list):
        at = entry_for(inner, rest)
        changed, within = placed(inner[at], rest, value)
        return body | {name: [*inner[:at], changed, *inner[at + 1 :]]}, f"{name}[{at}].{within}"
    changed, within = placed(inner, rest, value)
    return body | {name: changed}, f"{name}.{within}"


def complaint(request_type: str, body: dict, *, strictly: bool) -> tuple[str | None, str]:
    """The field at fault and the message; empty where nothing is."""
    try:
        BODIES[request_type].decode(msgspec.json.encode(body), strictly=strictly)
    except RefusalError as error:
        assert error.code == "invalid_request"
        return error.param, error.message
    return None, ""


@pytest.mark.parametrize(("request_type", "path"), REFUSED)
@pytest.mark.parametrize("strictly", [False, True])
def test_what_is_refused_is_named_and_what_is_neutral_is_not(request_type, path, strictly):
    option, given = TABLE.of(request_type, "refused")[path], examples_of(request_type)[path]
    for value in (given.example, msgspec.Raw(b"1e400"), {"a": [1]}):
        body, named = placed(given.beside, path, value)
        param, message = complaint(request_type, body, strictly=strictly)
        assert (param, message[: len(named) + 9]) == (named, f"{named} is known"), message
    for value in (None, *option.neutral):
        body, named = placed(given.beside, path, value)
        param, _ = complaint(request_type, body, strictly=strictly)
        assert param != named


NESTED = [
    (name, path)
    for name, body in BODIES.items()
    for path, field in fields_of(body._struct).items()
    if field is not None and structs_in(field.type)
]


@pytest.mark.parametrize(("request_type", "path"), NESTED)
def test_unknown_keys_of_every_nested_object_are_ignored_or_refused_with_their_path(
    request_type, path
):
    served = TABLE.of(request_type, "obeyed") | TABLE.of(request_type, "accepted")
    beside = (examples_of(request_type)[name].beside for name in served)
    examples = (body for body in beside if holds_object(body, path))
    body, named = placed(next(examples, {}), f"{path}.no such field", {"a": [1]})
    param, message = complaint(request_type, body, strictly=True)
    assert (param, message) == (named, f"{named}: is unknown")
    param, _ = complaint(request_type, body, strictly=False)
    assert param != named


def holds_object(body: Any, path: str) -> bool:
    """Whether there is an object at a dotted path."""
    name, _, rest = path.partition(".")
    body = body.get(name) if isinstance(body, dict) else None
    body = body[entry_for(body, rest)] if isinstance(body, list) else body
    return holds_object(body, rest) if rest else isinstance(body, dict)
