"""Parses msgspec's validation errors: where the fault is, and why."""

import re
from typing import Literal

import msgspec

from server.echoed import shortened

# msgspec ends its messages with the path of the fault, or quotes the name of a field.
# Neither names the key of an entry in an object: the path of its value ends in `[...]`.
_AT_PATH = re.compile(r" - at (?P<key>`key` in )?`\$\.?(?P<path>.*?)(\[\.\.\.\])?`$")
_FIELD = re.compile(r"^Object (?P<kind>missing required|contains unknown) field `(?P<name>.*?)`")
# A reason may quote the value.
_MOST_OF_REASON = 200


class Fault(msgspec.Struct, frozen=True):
    """One validation error.

    `path` leads to the value, to the missing or unknown field, or to the object whose key is wrong;
    it is empty for the whole input.
    """

    kind: Literal["value", "key", "missing", "unknown"]
    path: str
    reason: str


def fault_of(error: msgspec.ValidationError) -> Fault:
    """Parse the message of `error`."""
    reason = str(error)
    path, is_key = "", False
    if at := _AT_PATH.search(reason):
        reason, path, is_key = reason[: at.start()], shortened(at["path"]), bool(at["key"])
    if field := _FIELD.match(reason):
        name = shortened(field["name"])
        path = f"{path}.{name}" if path else name
        if field["kind"] == "missing required":
            return Fault("missing", path, "is required")
        return Fault("unknown", path, "is unknown")
    reason = shortened(reason[0].lower() + reason[1:], _MOST_OF_REASON)
    return Fault("key" if is_key else "value", path, reason)
