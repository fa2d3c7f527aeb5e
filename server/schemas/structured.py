"""What a request may ask of its text's form: `response_format`, `regex`, `choice`."""

from typing import Annotated

import msgspec
from msgspec import Meta

MAX_GRAMMAR_CHARS = 64 * 1024

Regex = Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
Choices = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)]


class PlainText(msgspec.Struct, frozen=True, tag="text"):
    """Any text."""


class JsonObject(msgspec.Struct, frozen=True, tag="json_object"):
    """Any JSON object."""


class NamedSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON schema as OpenAI wraps it. It is always followed strictly."""

    schema: Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "object"})]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchema(msgspec.Struct, frozen=True, tag="json_schema"):
    """JSON that is valid by a schema."""

    json_schema: NamedSchema


ResponseFormat = PlainText | JsonObject | JsonSchema
