"""From token ids to text as it becomes certain."""

import codecs

from engine_core.tokenization.tokenizer import REPLACEMENT, TextBytes, Tokenizer

# Enough of the prompt to know whether a text has begun, and with it a character.
CONTEXT_TOKENS = 8


class Detokenizer:
    """Incremental text of one row: its parts together are what decoding all ids would add.

    `context` is the tail of the prompt. A part is empty while a character is incomplete; a
    character that is incomplete at the end is left out. Bytes that are not UTF-8 become U+FFFD, as
    many as Python's decoder writes, and the text goes on behind them.
    """

    def __init__(
        self, tokenizer: Tokenizer, context: list[int], *, skip_special_tokens: bool = True
    ) -> None:
        self._bytes = TextBytes(tokenizer.token_bytes, skip_special_tokens=skip_special_tokens)
        self._pending = b""  # of an incomplete character
        self._decoded(b"".join(map(self._bytes.next, context)))

    def step(self, token: int) -> str:
        """The text that `token` makes certain."""
        return self._decoded(self._bytes.next(token))

    def _decoded(self, data: bytes) -> str:
        data = self._pending + data
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text


def finished_text(tokenizer: Tokenizer, ids: list[int], *, skip_special_tokens: bool) -> str:
    """The text of `ids` without the beginning of a character at its end."""
    text = tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
    if not text.endswith(REPLACEMENT):
        return text
    data = tokenizer.token_bytes.joined(ids, skip_special_tokens=skip_special_tokens)
    return codecs.utf_8_decode(data, "replace", False)[0]
