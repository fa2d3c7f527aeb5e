"""From token ids to text as it becomes certain."""

from tokenizers.decoders import DecodeStream

from engine_core.panics import as_exception
from engine_core.tokenization.tokenizer import Tokenizer
from server.service.token_bytes import REPLACEMENT, TokenBytes, unfinished

# Enough of the prompt for a decoder to know whether a space precedes the first token.
CONTEXT_TOKENS = 8


class Detokenizer:
    """Incremental text of one row: its parts together are what decoding all ids would add.

    `context` is the tail of the prompt. A part is empty while a character is incomplete; a
    character that is incomplete at the end is left out. Bytes that are not UTF-8 have no such text:
    some decoders change text that they have already returned.
    """

    def __init__(
        self, tokenizer: Tokenizer, context: list[int], *, skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skips = skip_special_tokens
        self._stream = DecodeStream(ids=context, skip_special_tokens=skip_special_tokens)
        self._ids = context
        self._uncertain = 0  # ids at the end whose text is not certain yet
        # The stream repeats a context that seems to end inside a character.
        uncertain = self._decode(context).endswith(REPLACEMENT)
        self._repeated = len(self._finished(context)) if uncertain else 0

    def step(self, token: int) -> str:
        """The text that `token` makes certain."""
        self._ids.append(token)
        try:
            text = self._stream.step(self._tokenizer.raw, token)
        except BaseException as error:  # tokenizers raises nothing narrower, or panics
            if not str(failure := as_exception(error)).startswith("Invalid prefix"):
                raise failure from None
            self._stream = DecodeStream(ids=[], skip_special_tokens=self._skips)
            text = self._stream.step(self._tokenizer.raw, token)
        if not text:
            self._uncertain += 1
            return ""
        repeated, self._repeated, self._uncertain = self._repeated, 0, 0
        return text[repeated:]

    def flush(self) -> str:
        """The rest of the text at the end, without an incomplete character."""
        if not self._uncertain:
            return ""
        returned = self._finished(self._ids[: -self._uncertain])
        return self._finished(self._ids)[len(returned) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skips)

    def _finished(self, ids: list[int]) -> str:
        return finished_text(self._tokenizer, ids, skip_special_tokens=self._skips)


def finished_text(tokenizer: Tokenizer, ids: list[int], *, skip_special_tokens: bool) -> str:
    """The text of `ids` without the beginning of a character at its end."""

    def decode(ids: list[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    text = decode(ids)
    if not text.endswith(REPLACEMENT):
        return text
    known = TokenBytes(tokenizer)
    # A token without text is one that is skipped; unknown bytes end any character.
    tail = [(known[token] or b"?") if decode([token]) else b"" for token in ids[-CONTEXT_TOKENS:]]
    rest = unfinished(b"".join(tail))
    kept = len(ids)
    while rest and len(tail[-1]) <= rest:
        rest -= len(tail.pop())
        kept -= 1
    text = decode(ids[:kept])
    # The rest of the character ends a token that begins with other text.
    return text.removesuffix(REPLACEMENT) if rest else text
