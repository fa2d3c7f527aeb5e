"""The text of single tokens in log-probabilities."""

from engine_core.tokenization.tokenizer import TokenBytes

_PRINTABLE = range(0x20, 0x7F)


class TokenText:
    r"""The text of single tokens as they read inside a text: " the", "</s>", "ing".

    A part of a character is written as its bytes, as OpenAI does: "bytes:\xf0\x9f" in completions,
    without the `mark` in chats. A token without text has the vocabulary's own entry.
    """

    def __init__(self, tokens: TokenBytes, mark: str = "bytes:") -> None:
        self._tokens = tokens
        self._mark = mark
        self._known: dict[int, str] = {}

    def __getitem__(self, token: int) -> str:
        text = self._known.get(token)
        if text is None:
            text = self._known[token] = self._find(token)
        return text

    def _find(self, token: int) -> str:
        data = self._tokens[token]
        if not data:
            return self._tokens.entry(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return self._mark + "".join(map(_escaped, data))


class TokenIds:
    """Tokens by their ids as vLLM writes them, "token_id:17"."""

    def __getitem__(self, token: int) -> str:
        return f"token_id:{token}"


def _escaped(byte: int) -> str:
    return chr(byte) if byte in _PRINTABLE and byte != ord("\\") else f"\\x{byte:02x}"
