"""What an engine makes of a job's message before its rows are made, off the loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine_core.loop.jobs import Job
from engine_core.messages import KeyShare
from engine_core.refusal import RefusalError
from engine_core.tokenization.long_item import LongItem
from engine_core.tokenization.text_pieces import TextPieces, tokenize_pieces
from engine_core.tokenization.text_slicer import SLICE_CHARACTERS
from engine_core.tokenization.tokenized import Tokenized
from engine_core.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from engine_core.structured.grammar import CompiledGrammar

WholeText = str | tuple[str, str]
Text = WholeText | TextPieces


@dataclass(slots=True, eq=False)
class JobInputs:
    """A job, its items' ids as far as they are known, and its grammar, if it has one; or the reason
    why it is refused. Its `texts` are tokenized in order."""

    job: Job
    tokenized: list[Tokenized] = field(default_factory=list[Tokenized])
    texts: list[Text] = field(default_factory=list[Text])
    grammar: CompiledGrammar | None = None
    refusal: RefusalError | None = None
    long_item: LongItem | None = None

    @property
    def key(self) -> KeyShare:
        """Its API key."""
        return self.job.message.key

    @property
    def is_over(self) -> bool:
        """Whether no text is left to tokenize."""
        return self.refusal is not None or self.job.ended or len(self.tokenized) == len(self.texts)

    def next_texts(self) -> list[WholeText]:
        """The next texts, about `SLICE_CHARACTERS` of them, for a call that tokenizes those of
        other jobs too; none where `next_part` is due."""
        texts: list[WholeText] = []
        for text in self._next_slice():
            if isinstance(text, TextPieces) or length_of(text) > SLICE_CHARACTERS:
                break
            texts.append(text)
        return texts

    def next_part(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        """Tokenize the next texts in a template, or a part of the next text, which is long."""
        options = self.job.message.tokenization
        text, *others = self._next_slice()
        if isinstance(text, TextPieces):
            pieces = [text, *(other for other in others if isinstance(other, TextPieces))]
            self.tokenized += tokenize_pieces(tokenizer, pieces, options, max_model_len)
            return
        if self.long_item is None:
            self.long_item = LongItem(tokenizer, text, options, max_model_len)
        if (whole := self.long_item.step()) is not None:
            self.tokenized.append(whole)
            self.long_item = None

    def _next_slice(self) -> list[Text]:
        size, start = 0, len(self.tokenized)
        for stop in range(start, len(self.texts)):
            size += length_of(self.texts[stop])
            if size >= SLICE_CHARACTERS:
                return self.texts[start : stop + 1]
        return self.texts[start:]


def length_of(text: Text) -> int:
    """In characters."""
    return len(text[0]) + len(text[1]) if isinstance(text, tuple) else len(text)
