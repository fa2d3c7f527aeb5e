"""Where in its input msgspec found a fault: its messages, taken apart."""

import re
from typing import Literal

import msgspec

# msgspec ends its messages with the path of the fault, or quotes the name of a field.
# Neither says which entry of an object it is about: a value's path ends in `[...]`.
_AT_PATH = re.compile(r" - at (?P<key>`key` in )?`\$\.?(?P<path>.*?)(\[\.\.\.\])?`$")
_FIELD = re.compile(r"^Object (?P<kind>missing required|contains unknown) field `(?P<name>.*?)`")


class Fault(msgspec.Struct, frozen=True):
    """One complaint. `path` is that of the value, of the field that is missing or unknown, or of
    the object whose key is wrong; it is empty for the whole input."""

    kind: Literal["value", "key", "missing", "unknown"]
    path: str
    reason: str


def fault_of(error: msgspec.ValidationError) -> Fault:
    """Take an error's message apart."""
    reason = str(error)
    path, is_key = "", False
    if at := _AT_PATH.search(reason):
        reason, path, is_key = reason[: at.start()], at["path"], bool(at["key"])
    if field := _FIELD.match(reason):
        path = f"{path}.{field['name']}" if path else field["name"]
        if field["kind"] == "missing required":
            return Fault("missing", path, "is required")
        return Fault("unknown", path, "is unknown")
    return Fault("key" if is_key else "value", path, reason[0].lower() + reason[1:])
