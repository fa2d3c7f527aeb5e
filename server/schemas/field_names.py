"""Fields that have several names."""

from typing import TypeVar

from engine_core.refusal import RefusalError

Value = TypeVar("Value")


def value_under_any_name(*named: tuple[str, Value | None]) -> Value | None:
    """The value of a field that has several names, `named` with their values; None if the request
    uses none of them. Raises RefusalError if two values differ."""
    return name_and_value(*named)[1]


def name_and_value(*named: tuple[str, Value | None]) -> tuple[str, Value | None]:
    """The first of a field's names that the request uses, with its value; the first of all names
    and None if it uses none. Raises RefusalError if two values differ."""
    first, *others = [(name, value) for name, value in named if value is not None] or named
    for name, value in others:
        if value != first[1]:
            raise given_twice(first[0], name)
    return first


def given_twice(field: str, other: str) -> RefusalError:
    """The refusal of a request that gives a field under both of its names."""
    message = f"{other}: is another name of {field}, which is also given; give only one of them"
    return RefusalError("invalid_request", message, other)
