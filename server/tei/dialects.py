"""Whose dialect a body at a shared path is, told apart by the required field."""

import msgspec
from msgspec import Raw

_NULL = Raw(b"null")
_fields = msgspec.json.Decoder(dict[str, Raw])


def is_tei(raw: bytes, field: str, *, unless: tuple[str, ...]) -> bool:
    """Whether a body is TEI's: it has the `field` that TEI requires and none of our own, `unless`.
    One that cannot be read is not: it gets our own error."""
    given = _given(raw)
    return field in given and given.isdisjoint(unless)


def _given(raw: bytes) -> set[str]:
    try:
        fields = _fields.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return set()
    return {name for name, value in fields.items() if value != _NULL}
