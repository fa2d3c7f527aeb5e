"""The bytes of tokens: a token may be only a part of a character.

Texts are put together from these wherever bytes are no UTF-8. The tokenizers' own decoders lose
text there: one that falls back to bytes replaces a whole run of them if one is wrong.
"""

import re
from collections.abc import Sequence

from tokenizers import Tokenizer

from engine_core.tokenization.panics import as_exception

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """The UTF-8 of single tokens inside a text; None for a part of a character whose entry in the
    vocabulary does not show its bytes."""

    def __init__(self, raw: Tokenizer) -> None:
        self._raw = raw
        self._known: dict[int, bytes | None] = {}
        # Decoders drop the space before the first token; this one is put before every other, and
        # behind it, because some decoders drop the space behind the last.
        self._anchor = raw.encode("a", add_special_tokens=False).ids[-1:]
        self._before = self._decoded(self._anchor)
        self._behind = self._decoded(self._anchor * 2).removeprefix(self._before)
        added = raw.get_added_tokens_decoder()
        self.special = frozenset(token for token in added if added[token].special)

    def __getitem__(self, token: int) -> bytes | None:
        if token not in self._known:
            text = self._decoded([*self._anchor, token, *self._anchor])
            text = text.removeprefix(self._before).removesuffix(self._behind)
            self._known[token] = self._spelled(token, text)
        return self._known[token]

    def entry(self, token: int) -> str:
        """The vocabulary's own spelling of a token; empty for an id without one."""
        return self._raw.id_to_token(token) or ""

    def first(self, token: int) -> bytes | None:
        """The UTF-8 of a token that a text begins with."""
        return self._spelled(token, self._decoded([token]))

    def joined(self, ids: Sequence[int], *, skip_special_tokens: bool) -> bytes:
        """The bytes of the text of `ids`."""
        text = TextBytes(self, skip_special_tokens=skip_special_tokens)
        return b"".join(map(text.next, ids))

    def _decoded(self, ids: list[int]) -> str:
        try:
            return self._raw.decode(ids, skip_special_tokens=False)
        except BaseException as error:
            raise as_exception(error) from None

    def _spelled(self, token: int, text: str) -> bytes | None:
        """The bytes of a token whose `text` may have replacements for them."""
        entry = self.entry(token)
        # No alphabet of bytes has U+FFFD itself: an entry with it is text.
        if REPLACEMENT not in text or REPLACEMENT in entry:
            return text.encode()
        if byte := _BYTE_TOKEN.fullmatch(entry):
            return bytes([int(byte[1], 16)])
        if all(char in _BYTE_OF for char in entry):
            return bytes(_BYTE_OF[char] for char in entry)
        return None


class TextBytes:
    """The bytes of a text, token by token."""

    def __init__(self, tokens: TokenBytes, *, skip_special_tokens: bool) -> None:
        self._tokens = tokens
        self._skipped = tokens.special if skip_special_tokens else frozenset[int]()
        self._begun = False

    def next(self, token: int) -> bytes:
        """What `token` adds. Unknown bytes are those of U+FFFD."""
        if token in self._skipped:
            return b""
        data = self._tokens[token]
        if not self._begun and data != b"":
            self._begun = True
            data = self._tokens.first(token)
        return _UNKNOWN if data is None else data


_UNKNOWN = REPLACEMENT.encode()


def _byte_alphabet() -> dict[str, int]:
    """The byte behind each character of a byte-level vocabulary (GPT-2): printable bytes are
    themselves, the others are, in order, the characters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    codes = printable + [256 + index for index in range(len(others))]
    return {chr(code): byte for code, byte in zip(codes, printable + others, strict=True)}


_BYTE_OF = _byte_alphabet()
