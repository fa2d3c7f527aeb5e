"""A long text, tokenized slice by slice, and not further than its tokens are of use."""

from collections import deque
from collections.abc import Iterable, Iterator

from tokenizers import Encoding

from engine_core.tokenization.text_slicer import TextSlice, TextSlicer
from engine_core.tokenization.tokenizer import Tokenizer


class SlicedText:
    """The tokens of a text, those of its beginning first, or those of its end. They are those of
    the whole text."""

    def __init__(
        self, tokenizer: Tokenizer, text: str, *, from_end: bool = False, offsets: bool = False
    ) -> None:
        """With `offsets` it is also known where the tokens are."""
        self._slicer = TextSlicer(tokenizer, text, offsets=offsets)
        self._from_end = self._can_take_last = from_end
        self._before: deque[TextSlice] = deque()
        self._behind: deque[TextSlice] = deque()
        # What is not tokenized yet is between these.
        self._start, self._stop = 0, len(text)

    @property
    def is_complete(self) -> bool:
        """Whether all of the text is tokenized."""
        return self._start == self._stop and bool(self._before or self._behind)

    @property
    def num_tokens(self) -> int:
        """How many tokens `merged` has."""
        return _num_tokens(self._before) + _num_tokens(self._behind)

    def has_more_than(self, most: int) -> bool:
        """Whether there are more than `most` tokens next to the side that is tokenized first."""
        return _num_tokens(self._behind if self._from_end else self._before) > most

    def take(self) -> int:
        """Tokenize one slice more, and return how many characters it had."""
        if part := self._slicer.last(self._stop) if self._can_take_last else None:
            self._behind.appendleft(part)
            self._stop = part.start
        else:
            self._can_take_last = False
            part = self._take_first()
        return part.stop - part.start

    def keep_last(self, most: int) -> None:
        """Forget slices at the beginning while there are more than `most` tokens behind them."""
        while self._before and self.num_tokens - len(self._before[0].encoding) > most:
            self._before.popleft()

    def merged(self) -> Encoding:
        """What is tokenized so far, as one text without special tokens."""
        slices = [part.encoding for part in (*self._before, *self._behind)]
        return Encoding.merge(slices, growing_offsets=False)

    def offsets(self) -> Iterator[tuple[int, int]]:
        """Where each token begins and ends in the text."""
        for part in (*self._before, *self._behind):
            for start, stop in part.encoding.offsets:
                yield part.start + start, part.start + stop

    def _take_first(self) -> TextSlice:
        continues = bool(self._before) and not self._before[-1].is_apart
        part = self._slicer.first(self._start, self._stop, continues=continues)
        if part is None:
            part = self._slicer.whole()
            self._before.clear()
            self._behind.clear()
            self._stop = part.stop
        self._before.append(part)
        self._start = part.stop
        return part


def _num_tokens(slices: Iterable[TextSlice]) -> int:
    return sum(len(part.encoding) for part in slices)
