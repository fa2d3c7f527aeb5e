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
    """Any JSON object, or, as llama.cpp has it, one that is valid by a schema."""

    schema: SchemaText | UnsetType = UNSET


class NamedSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON schema as OpenAI wraps it. It is always followed strictly."""

    schema: Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "object"})]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchema(msgspec.Struct, frozen=True, tag="json_schema"):
    """JSON that is valid by a schema."""

    json_schema: NamedSchema


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's: one of these."""

    json: SchemaText | UnsetType = UNSET
    regex: Regex | None = None
    choice: Choices | None = None
    json_object: bool | None = None


ResponseFormat = PlainText | JsonObject | JsonSchema
