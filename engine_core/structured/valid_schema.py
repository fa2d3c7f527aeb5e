"""What JSON Schema asks of the values of its keywords."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from engine_core.structured.grammar_error import GrammarError
from engine_core.structured.schema_tree import Path, Schema, path_text

_MAX_DEPTH = 128
"""That of llguidance's parser."""

_Type = Literal["array", "boolean", "integer", "null", "number", "object", "string"]
_Count = Annotated[float, Meta(ge=0, multiple_of=1)]
_Place = dict[str, Any] | bool
_Places = Annotated[list[dict[str, Any] | bool], Meta(min_length=1)]
_NamedPlaces = dict[str, dict[str, Any] | bool]

_Keywords = TypedDict(
    "_Keywords",
    {
        "$ref": str,
        "$defs": _NamedPlaces,
        "definitions": _NamedPlaces,
        "type": _Type | Annotated[list[_Type], Meta(min_length=1)],
        "enum": list[Any],
        "allOf": _Places,
        "anyOf": _Places,
        "oneOf": _Places,
        "not": _Place,
        "if": _Place,
        "then": _Place,
        "else": _Place,
        "properties": _NamedPlaces,
        "patternProperties": _NamedPlaces,
        "additionalProperties": _Place,
        "unevaluatedProperties": _Place,
        "propertyNames": _Place,
        "dependentSchemas": _NamedPlaces,
        "required": list[str],
        "minProperties": _Count,
        "maxProperties": _Count,
        "items": dict[str, Any] | list[dict[str, Any] | bool] | bool,
        "prefixItems": list[dict[str, Any] | bool],
        "additionalItems": _Place,
        "unevaluatedItems": _Place,
        "contains": _Place,
        "minContains": _Count,
        "maxContains": _Count,
        "minItems": _Count,
        "maxItems": _Count,
        "uniqueItems": bool,
        "minLength": _Count,
        "maxLength": _Count,
        "pattern": str,
        "format": str,
        "minimum": float,
        "maximum": float,
        # A boolean in draft 4, beside `minimum` or `maximum`.
        "exclusiveMinimum": float | bool,
        "exclusiveMaximum": float | bool,
        "multipleOf": Annotated[float, Meta(gt=0)],
    },
    total=False,
)


def check_valid(schemas: Iterable[tuple[Path, Schema]]) -> None:
    """Raises GrammarError, with the path of the keyword, if one of them is no JSON schema, apart
    from those within it."""
    for path, schema in schemas:
        _check(schema, path)


def _check(schema: Schema, path: Path) -> None:
    if len(path) > _MAX_DEPTH:
        raise GrammarError("the schema is nested too deeply")
    try:
        msgspec.convert(schema, _Keywords)
    except msgspec.ValidationError as error:
        raise GrammarError(str(error).replace("`$", f"`{path_text(path)}")) from None
