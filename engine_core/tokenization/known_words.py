"""The ids of words, for tokenizers that tokenize each word of a text alone.

The library takes some 300 us for 100 words. Looking them up, and joining their ids, takes 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from tokenizers.models import WordPiece

from engine_core.refusal import RefusalError
from engine_core.tokenization.pipeline_rules import PipelineRules

if TYPE_CHECKING:
    from engine_core.tokenization.tokenizer import Tokenizer

_MOST_NEW = 1 / 3
"""The share of a text's words that may be new. Alone, words take the library twice as long."""

_LEARNT = 16
"""Words of one text alone that a call learns: a lone text may have none but these."""

_MOST_KNOWN, _WORD = 1 << 22, 32
"""The most characters of all words, and what each word counts for beside its own: 100,000 words of
a language, in some 20 MB."""

_SEPARATE = frozenset({"BertNormalizer", "Lowercase"})
"""Normalizers that change each character for itself, whatever is behind a space."""


class KnownWords:
    """Words that were in texts before. Any thread may ask for them."""

    def __init__(self, tokenizer: Tokenizer, around: tuple[list[int], list[int]]) -> None:
        """`around` a text, its template puts these ids."""
        self._tokenizer = tokenizer
        self._known: dict[str, bytes] = {}
        self._size = 0
        self.before, self.behind = (np.array(ids, np.int32).tobytes() for ids in around)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> KnownWords | None:
        """Return the words of a tokenizer, at first none.

        None where it may join what a space parts, or where its template is not known to put ids
        around a text and nothing else."""
        if not _parts_at_spaces(tokenizer):
            return None
        try:
            around, text = (each.ids for each in tokenizer.encodings(["", "a b"]))
            own = tokenizer.encodings(["a b"], add_special_tokens=False)[0].ids
        except RefusalError:  # its unknown token may be missing
            return None
        for place in range(len(around) + 1):
            before, behind = around[:place], around[place:]
            if text == [*before, *own, *behind] and not {*around}.intersection(own):
                return cls(tokenizer, (before, behind))
        return None

    def ids(self, texts: Sequence[str]) -> list[bytes | None]:
        """The ids of each text, int32, without those around it. None if many words of it are new.

        Learns the new words of texts that have few, and of others those of two texts."""
        found = [*map(self.joined, texts)]
        if None in found:
            self._learn_from([text for text, ids in zip(texts, found, strict=True) if ids is None])
            found = [*map(self.joined, texts)]
        return found

    def joined(self, text: str) -> bytes | None:
        """The ids of a text, int32, without those around it. None if any word of it is new."""
        try:
            return b"".join(map(self._known.__getitem__, _words(text)))
        except KeyError:
            return None

    def _learn_from(self, texts: list[str]) -> None:
        learnt, others = set[str](), set[str]()
        for own in map(_words, texts):
            new = set(own).difference(self._known)
            learnt |= new if len(new) <= _MOST_NEW * len(own) else new & others
            others |= new
        self._learn([*learnt, *islice(others - learnt, _LEARNT)])

    def _learn(self, words: list[str]) -> None:
        """Learn words, and forget all others if these are too many. A text with a word at which the
        library fails is left to the library."""
        with suppress(RefusalError):
            ids = self._tokenizer.encode(words, add_special_tokens=False)
            size = sum(map(len, words)) + _WORD * len(words)
            self._size += size
            if self._size > _MOST_KNOWN:
                self._known, self._size = {}, size
            self._known.update(zip(words, ids, strict=True))


def _words(text: str) -> list[str]:
    # A line break parts words, too. Not all that Python takes for white space does.
    return text.replace("\n", " ").split(" ")


def _parts_at_spaces(tokenizer: Tokenizer) -> bool:
    """Whether texts are split at each space, before which nothing looks beyond it."""
    rules = PipelineRules.of(tokenizer.raw)
    added = tokenizer.raw.get_added_tokens_decoder().values()
    return (
        isinstance(tokenizer.raw.model, WordPiece)
        and [rule["type"] for rule in rules.pre_tokenizer] == ["BertPreTokenizer"]
        and _SEPARATE.issuperset(rule["type"] for rule in rules.normalizer)
        # Added tokens are found in texts as they are, or as they are normalized.
        and all(
            token.content.isascii()
            and token.content.isprintable()
            and " " not in token.content
            and not (token.lstrip or token.rstrip or token.single_word)
            for token in added
        )
    )
