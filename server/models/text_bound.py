"""How long a text may be that is to be tokenized at all."""

from collections.abc import Callable, Iterable

from engine_core.refusal import RefusalError
from engine_core.tokenization.tokenizer import Tokenizer

_GROWN_BYTES = 128 << 20
"""Most bytes that a tokenizer's rules may expand one text to. Published ones need less."""
_SHRINKAGE = 64
"""Most characters of a text for each that its tokens spell: normalizers drop some, and an unknown
word of any length is one token."""


class TextBound:
    """Refuses texts far beyond a model's length: tokenizing 8 MB takes seconds and gigabytes."""

    def __init__(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        longest = max(map(len, tokenizer.raw.get_vocab(with_added_tokens=True)))
        self._max_model_len = max_model_len
        most = _SHRINKAGE * max_model_len * longest
        self.most_characters = min(most, int(_GROWN_BYTES / tokenizer.growth))

    def check_length(self, characters: int, field: str) -> None:
        """Check a text of so many characters, which need not exist yet.

        Raises RefusalError `context_length_exceeded`, naming the request's field.
        """
        if characters > self.most_characters:
            reason = (
                f"{field}: {characters} characters; this model takes {self._max_model_len} tokens, "
                f"and no text of more than {self.most_characters} is tokenized, not even truncated"
            )
            raise RefusalError("context_length_exceeded", reason, field)

    def check_all(self, texts: Iterable[str], name: Callable[[int], str]) -> None:
        """Check each of several texts. `name` returns the field of an index."""
        for index, text in enumerate(texts):
            if len(text) > self.most_characters:
                self.check_length(len(text), name(index))
