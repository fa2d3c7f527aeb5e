"""How log-probabilities spell single tokens."""

from engine_core.tokenizer import Tokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TokenText:
    """The text of single tokens, as they read inside a text: " the", "</s>", "ing".

    A token that is only a part of a character is spelled as the vocabulary spells it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}
        # Decoders drop the space before the first token; this one stands before every other.
        ids = tokenizer.raw.encode("a", add_special_tokens=False).ids
        self._anchor = ids[-1:]
        self._anchor_text = tokenizer.decode(self._anchor)

    def __getitem__(self, token: int) -> str:
        text = self._known.get(token)
        if text is None:
            text = self._known[token] = self._spell(token)
        return text

    def _spell(self, token: int) -> str:
        both = self._tokenizer.decode([*self._anchor, token], skip_special_tokens=False)
        text = both.removeprefix(self._anchor_text)
        spelling = self._tokenizer.id_to_token(token)
        return spelling if _REPLACEMENT in text or not text else text
