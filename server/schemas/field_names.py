"""Fields that have several names."""

from typing import TypeVar

from server.errors import APIError

Value = TypeVar("Value")


def given(*named: tuple[str, Value | None]) -> tuple[str, Value | None]:
    """The first of a field's names that a request uses, with its value; the first of all names and
    None if it uses none. Raises APIError if two values differ."""
    first, *others = [(name, value) for name, value in named if value is not None] or named
    for name, value in others:
        if value != first[1]:
            raise APIError.of_two_names(first[0], name)
    return first
