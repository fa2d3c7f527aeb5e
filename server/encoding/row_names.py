"""The request's fields behind the rows of its job, for refusals of the engine and of a plan."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine_core.refusal import RefusalError

_ROW = re.compile(r"(?:input|documents)(?:\[(?P<index>\d+)\])?")


def renamed(error: RefusalError, name: Callable[[int], str]) -> RefusalError:
    """`error` with the request's own field; `name` returns that of a row."""
    row = _ROW.fullmatch(error.param or "")
    if row is None:
        return error
    field = name(int(row["index"] or 0))
    return replace(error, message=error.message.replace(row[0], field, 1), param=field)


def item_names(field: str, value: str | Sequence[str | int | list[int]]) -> Callable[[int], str]:
    """The names of the items of `field`: itself for one item, with an index in a list of them."""
    one = isinstance(value, str) or isinstance(value[0], int)
    return lambda row: field if one else f"{field}[{row}]"
