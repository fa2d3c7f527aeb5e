"""Fields that have several names."""

from typing import TypeVar

from server.errors import APIError

Value = TypeVar("Value")


def value_under_any_name(*named: tuple[str, Value | None]) -> Value | None:
    """The value of a field that has several names, `named` with their values; None if the request
    uses none of them. Raises APIError if two values differ."""
    return name_and_value(*named)[1]


def name_and_value(*named: tuple[str, Value | None]) -> tuple[str, Value | None]:
    """The first of a field's names that the request uses, with its value; the first of all names
    and None if it uses none. Raises APIError if two values differ."""
    first, *others = [(name, value) for name, value in named if value is not None] or named
    for name, value in others:
        if value != first[1]:
            raise APIError.of_two_names(first[0], name)
    return first
