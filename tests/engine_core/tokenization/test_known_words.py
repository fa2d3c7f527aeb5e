"""Texts put together from the ids of their words, beside the library's of the whole texts."""

import select
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.models import BPE, WordLevel, WordPiece
from tokenizers.normalizers import NFKC, BertNormalizer, Lowercase
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.processors import (
    BertProcessing,
    PostProcessor,
    RobertaProcessing,
    TemplateProcessing,
)

from engine_core.loop.jobs import Job
from engine_core.messages import EncodeJob, Tokenization
from engine_core.refusal import RefusalError
from engine_core.tokenization import known_words
from engine_core.tokenization.known_words import KnownWords
from engine_core.tokenization.sliced_text import SLICE_CHARACTERS
from engine_core.tokenization.tokenized import WholeText, tokenize_texts, tokenized
from engine_core.tokenization.tokenizer import Tokenizer
from engine_core.workflows.tokenizer_threads import JobInputs, TokenizerThreads
from tests.engine_core.panicking import BAD, make_panicking
from tests.patience import PATIENCE

_LETTERS = "abcXYZ019äéßİ\u03c2\u03c3中文\u0301.,[]#-"
_VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ab", "##bc", "mask", "abc"]
_VOCABULARY += [f"{mark}{letter}" for mark in ("", "##") for letter in _LETTERS.lower() + "ae"]
_PARTS = [*_LETTERS, *"  \n\t\r\v\x00\x1c\x85\xa0\xad\u200b\u2028\u3000\ufeff\ufffd"]
_PARTS += ["[MASK]", "[mask]", "x[MASK]y", "<T>", "<t>", "ab" * 60]
_TEXT = st.lists(st.sampled_from(_PARTS), max_size=12).map("".join)
_TEXTS = st.lists(_TEXT | st.tuples(_TEXT, _TEXT), max_size=4)


def tokenizer_of(
    normalizer: BertNormalizer | Lowercase | Normalizers | NFKC | None,
    template: str = "[CLS] $A",
    pair: str = "[CLS] $A [SEP] $B:1 [SEP]:1",
) -> Tokenizer:
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(_VOCABULARY))}
    raw = RawTokenizer(WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    if normalizer is not None:
        raw.normalizer = normalizer
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    raw.add_tokens([AddedToken("<T>", normalized=True)])
    special = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    raw.post_processor = TemplateProcessing(template, pair, special_tokens=special)
    return Tokenizer(raw)


_EACH = [
    tokenizer_of(Normalizers([first, last]) if first else last, *templates)
    for (first, last), templates in zip(
        product(
            (None, Lowercase()),
            (
                BertNormalizer(),
                BertNormalizer(strip_accents=False, lowercase=False),
                BertNormalizer(clean_text=False, handle_chinese_chars=False, lowercase=False),
                Lowercase(),
            ),
        ),
        [
            ("[CLS] $A [SEP]",),
            ("$A [SEP]", "$A [SEP] [SEP] $B"),
            ("[CLS] $A", "$A:3 $B:2 [SEP]"),
            ("$A", "$A $B:1"),
        ]
        * 2,
        strict=True,
    )
]


def processed(processor: PostProcessor | None) -> Tokenizer:
    tokenizer = tokenizer_of(BertNormalizer())
    tokenizer.raw.post_processor = processor
    return tokenizer


_ENDS = ("[SEP]", 3), ("[CLS]", 2)
_WORD_BEFORE = TemplateProcessing("a $A", "a $A a $B:1", special_tokens=[("a", 9)])
_EACH += map(processed, (None, BertProcessing(*_ENDS), RobertaProcessing(*_ENDS), _WORD_BEFORE))


def by_library(
    tokenizer: Tokenizer, texts: Sequence[WholeText], options: Tokenization
) -> list[object]:
    special = options.add_special_tokens
    encodings = tokenizer.encodings(texts, add_special_tokens=special)
    return [
        tokenized(encoding, options, paired=isinstance(text, tuple))
        for encoding, text in zip(encodings, texts, strict=True)
    ]


@settings(max_examples=300)
@given(data=st.data())
def test_the_ids_are_those_of_the_library(data: st.DataObject) -> None:
    """In any order of calls, whatever is known: characters of all kinds, cut from either end."""
    tokenizer = data.draw(st.sampled_from(_EACH), "tokenizer")
    assert tokenizer.known_words is not None
    texts = data.draw(_TEXTS, "texts")
    options = Tokenization(
        add_special_tokens=data.draw(st.booleans(), "special"),
        truncate_to=data.draw(st.sampled_from([None, 0, 1, 2, 3, 7]), "limit"),
        truncation_side=data.draw(st.sampled_from(["left", "right"]), "side"),
    )
    found = tokenize_texts(tokenizer, texts, [options] * len(texts))
    assert found == by_library(tokenizer, texts, options)


def test_few_texts_of_known_words_need_no_thread() -> None:
    tokenizer = tokenizer_of(BertNormalizer(), "[CLS] $A [SEP]")
    threads, options = TokenizerThreads(tokenizer, 512), Tokenization()
    texts = ["ab abc", "abc", ("abc", "ab ab")]

    def put(*texts: WholeText) -> JobInputs | None:
        job = EncodeJob(1, texts=["ab abc"] * len(texts), tokenization=options)
        return threads.put(Job(b"", job, len(texts), 0), [*texts])

    assert put(*texts) is None
    assert select.select([threads], [], [], PATIENCE)[0]
    (learnt,) = threads.take()
    at_once = put(*texts)
    assert at_once is not None
    assert at_once.is_last
    assert at_once.tokenized == learnt.tokenized == by_library(tokenizer, texts, options)
    assert put(*texts, "a new one") is None
    assert put(*texts, ("ab", "a new one")) is None
    assert put("ab " * SLICE_CHARACTERS) is None


def test_a_pair_is_known_once_all_its_words_are() -> None:
    tokenizer, options = _EACH[0], [Tokenization()]
    words = tokenizer.known_words
    assert words is not None
    tokenize_texts(tokenizer, ["abc ab"], options)
    assert words.joined(("abc", "ab")) is not None
    assert words.joined(("abc", "ab other")) is None
    (found,) = tokenize_texts(tokenizer, [("abc", "ab")], options)
    assert np.frombuffer(found.segments, np.uint8).tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    "make",
    [
        lambda raw: setattr(raw, "normalizer", NFKC()),
        lambda raw: setattr(raw, "pre_tokenizer", pre_tokenizers.Metaspace()),
        lambda raw: setattr(raw, "pre_tokenizer", None),
        lambda raw: setattr(raw, "model", WordLevel({"[UNK]": 1}, "[UNK]")),
        lambda raw: setattr(raw, "model", BPE()),
        lambda raw: raw.add_tokens(["new token"]),
        lambda raw: raw.add_tokens(["中"]),
        lambda raw: raw.add_tokens([AddedToken("<left>", lstrip=True)]),
        lambda raw: raw.add_tokens([AddedToken("word", single_word=True)]),
        lambda raw: setattr(
            raw,
            "post_processor",
            TemplateProcessing("$A $A", special_tokens=[]),
        ),
    ],
)
def test_others_know_no_words(make: Callable[[RawTokenizer], object]) -> None:
    tokenizer = tokenizer_of(BertNormalizer())
    make(tokenizer.raw)
    assert KnownWords.of(Tokenizer(tokenizer.raw)) is None


def test_a_tokenizer_without_its_unknown_token_answers_all_the_same() -> None:
    raw = RawTokenizer(WordPiece({"hello": 0, "x": 1}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    threads = TokenizerThreads(Tokenizer(raw), 512)
    for number in range(3):
        job = EncodeJob(number, texts=["hello x"], tokenization=Tokenization())
        threads.put(Job(b"", job, 1, 0), ["hello x"])
        assert select.select([threads], [], [], PATIENCE)[0]
        (inputs,) = threads.take()
        (found,) = inputs.tokenized
        assert np.frombuffer(found.ids, np.int32).tolist() == [0, 1]


def test_a_word_at_which_the_library_fails_is_refused_and_not_learnt() -> None:
    tokenizer = tokenizer_of(BertNormalizer())
    words = tokenizer.known_words
    assert words is not None
    make_panicking(tokenizer.raw)
    options = [Tokenization()]
    for _ in range(2):
        with pytest.raises(RefusalError, match="cannot be tokenized"):
            tokenize_texts(tokenizer, [f"ab {BAD}"], options)
    assert words._known == {}
    assert tokenize_texts(tokenizer, ["ab"], options) == by_library(tokenizer, ["ab"], *options)


def test_few_new_words_are_learnt_at_a_time_and_all_forgotten_when_they_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known_words, "_LEARNT", 2)
    monkeypatch.setattr(known_words, "_MOST_KNOWN", 5 * (1 + known_words._WORD))
    tokenizer = tokenizer_of(BertNormalizer())
    words = tokenizer.known_words
    assert words is not None
    counts: list[int] = []
    for _ in range(3):
        assert tokenize_texts(tokenizer, ["a b c X"], [Tokenization()]) == by_library(
            tokenizer, ["a b c X"], Tokenization()
        )
        counts.append(len(words._known))
    assert counts == [2, 4, 4]
    tokenize_texts(tokenizer, ["Y Z"], [Tokenization()])
    assert len(words._known) == 2


def test_threads_may_ask_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_words, "_MOST_KNOWN", 40 * known_words._WORD)
    tokenizer, options = tokenizer_of(BertNormalizer()), Tokenization()
    calls = [[f"{one}{two} abc" for two in "abcXYZ"] for one in _LETTERS] * 20
    expected = [by_library(tokenizer, texts, options) for texts in calls]
    with ThreadPoolExecutor(4) as threads:
        found = threads.map(lambda texts: tokenize_texts(tokenizer, texts, [options] * 6), calls)
        assert list(found) == expected
