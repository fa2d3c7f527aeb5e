"""The one grammar that a request's text must match, from the fields that may hold one."""

from collections.abc import Iterator

import msgspec
from msgspec import UNSET, UnsetType

from engine_core.messages import Grammar, GrammarKind
from engine_core.refusal import RefusalError
from server.schemas.response_format import (
    MAX_GRAMMAR_CHARS,
    JsonObject,
    JsonSchema,
    JsonValue,
    NamedSchema,
    PlainText,
    RegexValue,
    ResponseFormat,
    SchemaText,
    StructuredOutputs,
)
from server.schemas.sampling import SamplingOptions

_JSON_SCHEMA, _VALUE = "response_format.json_schema", "response_format.value"
_ANY_OBJECT = '{"type": "object"}'


def grammar_of(body: SamplingOptions) -> Grammar | None:
    """None if the request does not restrict its text.

    Raises RefusalError, naming the field: different grammars, a schema that is not an object, or
    one that is too large.
    """
    requested = list(_requested(body))
    for grammar in requested:
        if (grammar.kind, grammar.source) != (requested[0].kind, requested[0].source):
            message = f"{grammar.param}: not together with {requested[0].param}"
            raise RefusalError("invalid_request", message, grammar.param)
        if len(grammar.source) > MAX_GRAMMAR_CHARS:
            raise RefusalError(
                "too_large",
                f"{grammar.param}: {len(grammar.source)} characters of JSON; at most "
                f"{MAX_GRAMMAR_CHARS} are allowed",
                grammar.param,
            )
    return requested[0] if requested else None


def _requested(body: SamplingOptions) -> Iterator[Grammar]:
    """The grammars in the request's fields, under all names of each."""
    yield from _from_format(body.response_format)
    outputs = body.structured_outputs or StructuredOutputs()
    yield from _from_schema(body.json_schema, "json_schema")
    yield from _from_schema(body.guided_json, "guided_json")
    yield from _from_schema(outputs.json, "structured_outputs.json")
    if outputs.json_object:
        yield Grammar("json_schema", _ANY_OBJECT, "structured_outputs.json_object")
    for param, regex in (
        ("regex", body.regex),
        ("guided_regex", body.guided_regex),
        ("structured_outputs.regex", outputs.regex),
    ):
        if regex is not None:
            yield Grammar("regex", regex, param)
    for param, choice in (
        ("choice", body.choice),
        ("guided_choice", body.guided_choice),
        ("structured_outputs.choice", outputs.choice),
    ):
        if choice is not None:
            yield Grammar("choice", msgspec.json.encode(choice).decode(), param)


def _from_format(requested: ResponseFormat | None) -> Iterator[Grammar]:
    match requested:
        case JsonObject(schema=schema, value=value):
            given = [*_from_schema(schema, "response_format.schema"), *_from_schema(value, _VALUE)]
            yield from given or [Grammar("json_schema", _ANY_OBJECT, "response_format")]
        case JsonSchema(json_schema=named, value=value):
            given = [*_from_named(named, _JSON_SCHEMA), *_from_named(value, _VALUE)]
            if not given:
                raise RefusalError("invalid_request", f"{_JSON_SCHEMA}: missing", _JSON_SCHEMA)
            yield from given
        case JsonValue(value=value):
            given = list(_from_schema(value, _VALUE))
            if not given:
                raise RefusalError("invalid_request", f"{_VALUE}: expected an object", _VALUE)
            yield from given
        case RegexValue(value=value):
            yield Grammar("regex", value, _VALUE)
        case PlainText() | None:
            return


def _from_named(named: NamedSchema | None, param: str) -> Iterator[Grammar]:
    if named is not None:
        kind: GrammarKind = "loose_json_schema" if named.strict is False else "json_schema"
        yield _grammar(bytes(named.schema).decode(), f"{param}.schema", kind)


def _from_schema(raw: SchemaText | UnsetType, param: str) -> Iterator[Grammar]:
    """A schema that may be in a string, or not there. Raises RefusalError."""
    text = "null" if raw is UNSET else bytes(raw).decode()
    is_string = text.startswith('"')
    if is_string:
        try:
            text = msgspec.json.decode(text, type=str).strip()
        except msgspec.DecodeError as error:
            raise RefusalError("invalid_request", f"{param}: {error}", param) from None
    if is_string or text != "null":
        yield _grammar(text, param)


def _grammar(schema: str, param: str, kind: GrammarKind = "json_schema") -> Grammar:
    if not schema.startswith("{"):
        raise RefusalError("invalid_request", f"{param}: expected an object", param)
    return Grammar(kind, schema, param)
