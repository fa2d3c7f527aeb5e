"""The one grammar that a request's text must match, from the fields that may ask for one."""

import msgspec

from engine_core.messages import Grammar
from server.errors import APIError
from server.schemas.sampling import SamplingOptions
from server.schemas.structured import (
    MAX_GRAMMAR_CHARS,
    JsonObject,
    JsonSchema,
    PlainText,
    ResponseFormat,
)

_SCHEMA = "response_format.json_schema.schema"


def grammar_of(body: SamplingOptions) -> Grammar | None:
    """None where the request leaves its text free.

    Raises APIError, naming the field: several grammars, a schema that is no object, one too large.
    """
    asked = {
        "response_format": _from_format(body.response_format),
        "regex": Grammar("regex", body.regex, "regex") if body.regex is not None else None,
        "choice": _from_choice(body.choice),
    }
    grammars = {field: grammar for field, grammar in asked.items() if grammar is not None}
    if len(grammars) > 1:
        first, *_, field = grammars
        raise APIError("invalid_request", f"{field}: not together with {first}", field)
    for grammar in grammars.values():
        if len(grammar.source) > MAX_GRAMMAR_CHARS:
            raise APIError(
                "too_large",
                f"{grammar.param}: {len(grammar.source)} characters of JSON; a request takes "
                f"{MAX_GRAMMAR_CHARS}",
                grammar.param,
            )
        return grammar
    return None


def _from_format(asked: ResponseFormat | None) -> Grammar | None:
    match asked:
        case JsonObject():
            return Grammar("json_schema", '{"type": "object"}', "response_format")
        case JsonSchema(json_schema=named):
            schema = bytes(named.schema).decode()
            if not schema.startswith("{"):
                raise APIError("invalid_request", f"{_SCHEMA}: expected an object", _SCHEMA)
            return Grammar("json_schema", schema, _SCHEMA)
        case PlainText() | None:
            return None


def _from_choice(choice: list[str] | None) -> Grammar | None:
    return Grammar("choice", msgspec.json.encode(choice).decode(), "choice") if choice else None
