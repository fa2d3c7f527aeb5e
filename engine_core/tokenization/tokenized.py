"""A text's tokens."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tokenized:
    """One text's (or pair's) ids, int32 bytes, and segments, uint8 bytes (empty for one text).

    `dropped` counts the tokens that truncation removed.
    """

    ids: bytes
    segments: bytes = b""
    dropped: int = 0
