"""The bytes of single tokens: a token may be only a part of a character."""

import codecs
import re

from engine_core.tokenization.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TokenBytes:
    """The UTF-8 of single tokens inside a text; None for a part of a character whose entry in the
    vocabulary does not show its bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._known: dict[int, bytes | None] = {}
        # Decoders drop the space before the first token; this one is put before every other.
        (encoding,) = tokenizer.encodings(["a"], add_special_tokens=False)
        self._anchor = encoding.ids[-1:]
        self._anchor_text = tokenizer.decode(self._anchor)

    def __getitem__(self, token: int) -> bytes | None:
        if token not in self._known:
            self._known[token] = self._find(token)
        return self._known[token]

    def _find(self, token: int) -> bytes | None:
        both = self.tokenizer.decode([*self._anchor, token], skip_special_tokens=False)
        text = both.removeprefix(self._anchor_text)
        entry = self.tokenizer.id_to_token(token)
        # No alphabet of bytes has U+FFFD itself: an entry with it is text.
        if REPLACEMENT not in text or REPLACEMENT in entry:
            return (text or entry).encode()
        if byte := _BYTE_TOKEN.fullmatch(entry):
            return bytes([int(byte[1], 16)])
        if all(char in _BYTE_OF for char in entry):
            return bytes(_BYTE_OF[char] for char in entry)
        return None


def unfinished(data: bytes) -> int:
    """The number of bytes at the end of `data` that are the beginning of one character only."""
    _, finished = codecs.utf_8_decode(data, "replace", False)
    return len(data) - finished


def _byte_alphabet() -> dict[str, int]:
    """The byte behind each character of a byte-level vocabulary (GPT-2): printable bytes are
    themselves, the others are, in order, the characters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    codes = printable + [256 + index for index in range(len(others))]
    return {chr(code): byte for code, byte in zip(codes, printable + others, strict=True)}


_BYTE_OF = _byte_alphabet()
