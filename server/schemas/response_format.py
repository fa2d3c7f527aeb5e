"""The form of a text: `response_format`, and the same under the names of other servers."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

MAX_GRAMMAR_CHARS = 64 * 1024

Regex = Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
Choices = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)]

# A JSON schema, or a string that holds one, or null: `msgspec.Raw` and None make no union.
SchemaText = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": ["object", "string", "null"]})]


class PlainText(msgspec.Struct, frozen=True, tag="text"):
    """Any text."""


class JsonObject(msgspec.Struct, frozen=True, tag="json_object"):
    """Any JSON object, or one that is valid by a schema: llama.cpp's `schema`, TGI's `value`."""

    schema: SchemaText | UnsetType = UNSET
    value: SchemaText | UnsetType = UNSET


class JsonValue(msgspec.Struct, frozen=True, tag="json"):
    """JSON that is valid by a schema, as TGI has it."""

    value: SchemaText


class RegexValue(msgspec.Struct, frozen=True, tag="regex"):
    """Text that matches a regular expression, as TGI has it."""

    value: Regex


class NamedSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON schema as OpenAI wraps it. It is followed strictly, unless `strict` is false."""

    schema: Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "object"})]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchema(msgspec.Struct, frozen=True, tag="json_schema"):
    """JSON that is valid by a schema: OpenAI's `json_schema`, TGI's `value`."""

    json_schema: NamedSchema | None = None
    value: NamedSchema | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's: one of these."""

    json: SchemaText | UnsetType = UNSET
    regex: Regex | None = None
    choice: Choices | None = None
    json_object: bool | None = None


ResponseFormat = PlainText | JsonObject | JsonSchema | JsonValue | RegexValue
