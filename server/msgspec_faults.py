"""Parses msgspec's validation errors: where the fault is, and why."""

import re
from itertools import islice
from typing import Literal

import msgspec

from server.echoed import shortened

# msgspec ends its messages with the path of the fault, or quotes the name of a field.
# Neither names the key of an entry in an object: the path of its value ends in `[...]`.
_AT_PATH = re.compile(r" - at (?P<key>`key` in )?`\$\.?(?P<path>.*?)(?P<entry>\[\.\.\.\])?`$")
_FIELD = re.compile(r"^Object (?P<kind>missing required|contains unknown) field `(?P<name>.*?)`")
# A reason may quote the value.
_MOST_OF_REASON = 200
# No object of the API has more.
_MOST_ENTRIES = 1000

_entries = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Fault(msgspec.Struct, frozen=True):
    """One validation error.

    `path` leads to the value, to the missing or unknown field, or to the object with an entry whose
    value or key is wrong; it is empty for the whole input.
    """

    kind: Literal["value", "entry", "key", "missing", "unknown"]
    path: str
    reason: str


def fault_of(error: msgspec.ValidationError) -> Fault:
    """Parse the message of `error`."""
    reason = str(error)
    path, kind = "", "value"
    if at := _AT_PATH.search(reason):
        reason, path = reason[: at.start()], shortened(at["path"])
        kind = "key" if at["key"] else "entry" if at["entry"] else "value"
    if field := _FIELD.match(reason):
        name = shortened(field["name"])
        path = f"{path}.{name}" if path else name
        if field["kind"] == "missing required":
            return Fault("missing", path, "is required")
        return Fault("unknown", path, "is unknown")
    reason = shortened(reason[0].lower() + reason[1:], _MOST_OF_REASON)
    return Fault(kind, path, reason)


def entry_at_fault(whole: str, struct: type[msgspec.Struct], path: str) -> str | None:
    """The key of the entry that makes the object in a field of a `struct` invalid. None if it is
    not found: the rest may be no JSON, and only some entries are tried."""
    kinds = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
    try:
        entries = _entries.decode(_entries.decode(whole)[path])
    except (msgspec.DecodeError, RecursionError, KeyError):
        return None
    for key, value in islice(entries.items(), _MOST_ENTRIES):
        try:
            msgspec.json.decode(msgspec.json.encode({key: value}), type=kinds[path])
        except (msgspec.ValidationError, RecursionError):
            return key
    return None
