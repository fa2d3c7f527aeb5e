"""The ids of words, for tokenizers that tokenize each word of a text alone.

The library takes some 300 us for 100 words. Looking them up, and joining their ids, takes 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, groupby, islice, product
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from tokenizers import Encoding
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

_ITEM = 4  # bytes of an int32
_SEPARATE = frozenset({"BertNormalizer", "Lowercase"})
"""Normalizers that change each character for itself, whatever is behind a space."""


class Part(NamedTuple):
    """Tokens of text number `number` of a text or a pair, or tokens around texts, whose number is
    -1. `ids` are int32, `segments` uint8."""

    number: int
    ids: bytes
    segments: bytes

    def filled(self, ids: bytes) -> Part:
        """The same part of another text, whose ids these are."""
        return Part(self.number, ids, self.segments[:1] * (len(ids) // _ITEM))


class Template:
    """The tokens that a tokenizer puts around a text, or around and between two."""

    def __init__(self, example: Encoding) -> None:
        """`example` has tokens of each text."""
        tokens = zip(example.sequence_ids, example.ids, example.type_ids, strict=True)
        self._parts: list[Part] = []
        for number, group in groupby(tokens, itemgetter(0)):
            _, ids, segments = zip(*group, strict=True)
            of_text = -1 if number is None else number
            self._parts.append(Part(of_text, np.array(ids, np.int32).tobytes(), bytes(segments)))

    @classmethod
    def of(cls, tokenizer: Tokenizer, kind: tuple[int, bool]) -> Template:
        """The template of a `kind`: of so many texts, and whether with special tokens.

        Raises ValueError where it is not known to put tokens around texts and nothing else, or a
        segment is no byte, and RefusalError, as where the unknown token is missing."""
        count, special = kind
        texts = ["a b", ""] if count == 1 else [("a b", "a b"), ("", "")]
        found, empty = tokenizer.encodings(texts, add_special_tokens=special)
        template, (words,) = cls(found), tokenizer.encode(["a b"], add_special_tokens=False)
        for encoding, text in ((found, words), (empty, b"")):
            ids = b"".join(part.ids for part in template.around([text] * count))
            if ids != np.array(encoding.ids, np.int32).tobytes():
                raise ValueError("not only tokens around texts")
        return template

    def around(self, texts: Sequence[bytes]) -> list[Part]:
        """All parts of a text or a pair, whose own ids are given."""
        return [
            part if part.number < 0 else part.filled(texts[part.number]) for part in self._parts
        ]


class KnownWords:
    """Words that were in texts before. Any thread may ask for them."""

    def __init__(self, tokenizer: Tokenizer, templates: dict[tuple[int, bool], Template]) -> None:
        """`templates` are those of one text and of two, without special tokens and with them."""
        self._tokenizer, self.templates = tokenizer, templates
        self._known: dict[str, bytes] = {}
        self._size = 0

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> KnownWords | None:
        """Return the words of a tokenizer, at first none.

        None where it may join what a space parts, or where a template is not known."""
        if not _parts_at_spaces(tokenizer):
            return None
        kinds = product((1, 2), (False, True))
        try:
            return cls(tokenizer, {kind: Template.of(tokenizer, kind) for kind in kinds})
        except (RefusalError, ValueError):
            return None

    def ids(self, items: Sequence[tuple[str, ...]]) -> list[list[bytes] | None]:
        """The ids of each text of each item, int32, without a template's. None if many words of an
        item are new.

        Learns the new words of texts that have few, and of others those of two texts."""
        found = [*map(self.joined, items)]
        if None in found:
            left = [item for item, ids in zip(items, found, strict=True) if ids is None]
            self._learn_from([*chain.from_iterable(left)])
            found = [*map(self.joined, items)]
        return found

    def joined(self, item: tuple[str, ...]) -> list[bytes] | None:
        """The ids of each text, int32, without a template's. None if any word is new."""
        try:
            return [b"".join(map(self._known.__getitem__, _words(text))) for text in item]
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
