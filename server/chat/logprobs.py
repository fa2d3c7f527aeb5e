"""Chat's log-probabilities, which tell tokens apart that read the same."""

import copy
import re

from engine_core.tokenizer import Tokenizer
from server.generation.token_text import TokenText
from server.registry import Model
from server.schemas.chat import ChatLogprobs, TokenLogprob, TopLogprob
from server.schemas.completions import CompletionLogprobs

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TokenIds(TokenText):
    """Spells tokens by their ids: "17"."""

    def __getitem__(self, token: int) -> str:
        return str(token)


class ChatSpelling:
    """A model's tokens, as chat's log-probabilities tell them."""

    def __init__(self, model: Model) -> None:
        self._text = model.token_text
        self._tokenizer = model.tokenizer
        # Legacy log-probabilities are keyed by text; by ids they lose nothing on their way here.
        self.by_ids = copy.copy(model)
        self.by_ids.token_text = TokenIds(model.tokenizer)

    def told(self, entries: CompletionLogprobs, width: int) -> ChatLogprobs:
        """What `by_ids` has collected, with the `width` likeliest tokens at each place."""
        rows = zip(entries.tokens, entries.token_logprobs, entries.top_logprobs, strict=True)
        return ChatLogprobs(
            content=[
                self._entry(int(token), own or 0.0, top or {}, width) for token, own, top in rows
            ]
        )

    def _entry(self, token: int, own: float, top: dict[str, float], width: int) -> TokenLogprob:
        # The chosen token comes last in `top` where it is not among the likeliest.
        likeliest = [
            TopLogprob(token=self._text[int(other)], logprob=value, bytes=self._bytes(int(other)))
            for other, value in list(top.items())[:width]
        ]
        return TokenLogprob(
            token=self._text[token],
            logprob=own,
            bytes=self._bytes(token),
            top_logprobs=likeliest,
        )

    def _bytes(self, token: int) -> list[int] | None:
        return token_bytes(self._tokenizer, token, self._text[token])


def token_bytes(tokenizer: Tokenizer, token: int, text: str) -> list[int] | None:
    """The bytes of a token that reads `text`; None for a part of a character whose spelling in the
    vocabulary says nothing of bytes."""
    if _REPLACEMENT not in tokenizer.decode([token], skip_special_tokens=False):
        return list(text.encode())
    spelling = tokenizer.id_to_token(token)
    if byte := _BYTE_TOKEN.fullmatch(spelling):
        return [int(byte[1], 16)]
    found = [_BYTE_OF.get(char) for char in spelling]
    known = [byte for byte in found if byte is not None]
    return known if len(known) == len(found) else None


def _byte_alphabet() -> dict[str, int]:
    """The byte behind each character of a byte-level vocabulary (GPT-2): printable ones stand for
    themselves, the others, in order, for the characters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    codes = printable + [256 + place for place in range(len(others))]
    return {chr(code): byte for code, byte in zip(codes, printable + others, strict=True)}


_BYTE_OF = _byte_alphabet()
