"""Fields that have several names."""

from typing import TypeVar

from server.errors import APIError

Value = TypeVar("Value")


def given(*named: tuple[str, Value | None]) -> tuple[str, Value | None]:
    """What a request gives under any of a field's names, with the first that it uses; under the
    first of all and None where it gives nothing. Raises APIError where two differ."""
    first, *others = [(name, value) for name, value in named if value is not None] or named
    for name, value in others:
        if value != first[1]:
            raise APIError.of_two_names(first[0], name)
    return first
