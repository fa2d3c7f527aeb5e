"""Fields that have two names."""

from typing import TypeVar

from server.errors import APIError

Value = TypeVar("Value")


def under_either(
    name: str, value: Value | None, other_name: str, other: Value | None
) -> Value | None:
    """What a request gives under one of a field's names, or the same under both; None for nothing.
    Raises APIError where they differ."""
    if value is not None and other is not None and value != other:
        raise APIError.of_two_names(name, other_name)
    return other if value is None else value
