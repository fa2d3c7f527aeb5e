"""What clients have sent, as messages repeat it: the beginning of it."""

from typing import Final

_MOST: Final = 100
_MORE: Final = "…"


def shortened(text: str, most: int = _MOST) -> str:
    """`text`, or its beginning: `most` characters in all."""
    return text if len(text) <= most else text[: most - 1] + _MORE


def quoted(value: object) -> str:
    """`value` as Python writes it, or the beginning of that."""
    if isinstance(value, str):
        value = shortened(value)
    return shortened(repr(value), _MOST + 2)
