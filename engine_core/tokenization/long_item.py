"""An item with a long text, or a pair with one, tokenized until it is clear what becomes of it."""

from engine_core.messages import Tokenization
from engine_core.tokenization.sliced_text import SlicedText
from engine_core.tokenization.tokenized import Tokenized, tokenized
from engine_core.tokenization.tokenizer import Tokenizer


class LongItem:
    """Slice after slice, until the item is tokenized, or has more tokens than it may keep, or than
    the model takes."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        text: str | tuple[str, str],
        options: Tokenization,
        max_model_len: int,
    ) -> None:
        self._raw, self._options = tokenizer.raw, options
        texts = (text,) if isinstance(text, str) else text
        truncated = options.truncate_to is not None
        self._most = options.most_tokens(max_model_len)
        self._fewest = 0 if truncated else sum(map(tokenizer.fewest_tokens, texts))
        self._from_end = truncated and options.truncation_side == "left"
        self._texts = [SlicedText(tokenizer, each, from_end=self._from_end) for each in texts]

    def step(self) -> Tokenized | None:
        """Tokenize one slice more; the item's tokens if no other slice matters."""
        if self._fewest > self._most:
            return Tokenized(b"", at_least=self._fewest)
        text = next(text for text in self._texts if not self._is_enough(text))
        text.take()
        if self._from_end:
            text.keep_last(self._most)
        return self._tokenized() if all(map(self._is_enough, self._texts)) else None

    def _is_enough(self, text: SlicedText) -> bool:
        return text.is_complete or text.has_more_than(self._most)

    def _tokenized(self) -> Tokenized:
        options = self._options
        encoding = self._raw.post_process(
            *(text.merged() for text in self._texts), add_special_tokens=options.add_special_tokens
        )
        if options.truncate_to is None and not all(text.is_complete for text in self._texts):
            return Tokenized(b"", at_least=len(encoding))
        paired = len(self._texts) > 1
        first = self._texts[0].num_tokens if paired else 0
        return tokenized(encoding, options, paired=paired, first=first)
