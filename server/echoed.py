"""Beginnings of what clients and checkpoints say, as messages repeat them."""

from typing import Final

_MOST: Final = 100
_LINE: Final = 1000
_MORE: Final = "…"


def shortened(text: str, most: int = _MOST) -> str:
    """`text`, or its beginning: `most` characters in all."""
    return text if len(text) <= most else text[: most - 1] + _MORE


def quoted(value: object) -> str:
    """`value` as Python writes it, or the beginning of that."""
    if isinstance(value, str):
        value = shortened(value)
    return shortened(repr(value), _MOST + 2)


def one_line(error: object) -> str:
    """An error's words, or the beginning of them, on one line that a terminal shows as it is."""
    beginning = str(error)[: _LINE + 1]
    return shortened("".join(sign if sign.isprintable() else " " for sign in beginning), _LINE)
