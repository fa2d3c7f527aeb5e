"""What is kept of a text that is tokenized in parts is what would be kept of it as a whole."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import normalizers, pre_tokenizers

from engine_core.messages import Tokenization
from engine_core.tokenization import sliced_text
from engine_core.tokenization.sliced_text import SlicedText
from engine_core.tokenization.tokenized import Tokenized, WholeText, tokenize_long, tokenized
from engine_core.tokenization.tokenizer import Tokenizer
from server.demo import demo_models
from tests.engine_core.tokenization import tokenizer_folders as kinds

WORDS = [
    "word", "don't", "naïve", "Straße", "e\u0301te\u0301", "x", "x" * 40, "1234567", "3.14",
    "🙂👍🏽", "[SEP]", "<|bos|>", "中文字符", "日本語、です。", "עברית", "a\u00adb", "\u200b",
    "\u3164", "C++", "\x00",
]  # fmt: skip
GAPS = [" ", "  ", "\n", " \n\n", "\t", "", ". ", "\uff0c", "。", "\r\n", "\u00a0"]
SPACED = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(GAPS)), max_size=60).map(
    lambda parts: "".join(word + gap for word, gap in parts)
)
RUNS = st.tuples(
    st.sampled_from([*WORDS, "a", "ab", "12", "\u0301", "</s>", "<unk>"]), st.integers(1, 60)
)
UNSPACED = st.lists(RUNS, max_size=12).map(
    lambda runs: "".join(word * times for word, times in runs)
)
TEXTS = SPACED | UNSPACED | st.tuples(UNSPACED, SPACED, UNSPACED).map(" ".join)
MAX_MODEL_LEN = 20


def unigram() -> RawTokenizer:
    raw = kinds.xlm_roberta().tokenizer
    raw.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
    return raw


def whole_text_bpe() -> RawTokenizer:
    """A text is one word, with a space before it."""
    return kinds.llama2().tokenizer


def roberta() -> RawTokenizer:
    raw = kinds.roberta().tokenizer
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return raw


@pytest.fixture(scope="module", params=[unigram, whole_text_bpe, roberta, *demo_models().values()])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    made = request.param
    return Tokenizer.load(made) if isinstance(made, Path) else Tokenizer(made())


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliced_text, "SLICE_CHARACTERS", 24)
    monkeypatch.setattr(sliced_text, "_CONTEXT", 32)


def in_parts(tokenizer: Tokenizer, text: WholeText, options: Tokenization) -> Tokenized:
    *_, done = tokenize_long(tokenizer, text, options, MAX_MODEL_LEN)
    assert done is not None
    return done


def as_a_whole(tokenizer: Tokenizer, text: WholeText, options: Tokenization) -> Tokenized:
    special = options.add_special_tokens
    (encoding,) = tokenizer.raw.encode_batch_fast([text], add_special_tokens=special)
    return tokenized(encoding, options, paired=isinstance(text, tuple))


OPTIONS = st.builds(
    Tokenization,
    add_special_tokens=st.booleans(),
    truncate_to=st.none() | st.integers(1, 30),
    truncation_side=st.sampled_from(["left", "right"]),
)


@settings(max_examples=80)
@example(text=("word ", ""), options=Tokenization(truncate_to=2))
@given(text=TEXTS | st.tuples(TEXTS, TEXTS), options=OPTIONS)
def test_parts_have_the_tokens_of_the_whole(
    tokenizer: Tokenizer, text: WholeText, options: Tokenization
) -> None:
    whole, parts = as_a_whole(tokenizer, text, options), in_parts(tokenizer, text, options)
    if parts.at_least:
        assert options.truncate_to is None
        assert MAX_MODEL_LEN < parts.at_least <= whole.num_tokens
    else:
        assert (parts.ids, parts.segments) == (whole.ids, whole.segments)
        assert bool(parts.dropped) == bool(whole.dropped)


SPACED_TEXT = " ".join(f"number {index}" for index in range(20_000))
RUN = "".join(WORDS[:5]) * 100
"""Without a space."""


def minilm() -> RawTokenizer:
    return Tokenizer.load(demo_models()["all-MiniLM-L6-v2"]).raw


@pytest.mark.parametrize(
    ("make", "text", "side", "most"),
    [
        (minilm, SPACED_TEXT, "left", 200),
        (minilm, SPACED_TEXT, "right", 200),
        (whole_text_bpe, RUN, "right", 100),
        (roberta, RUN, "right", 100),
        # Its end is found from its beginning, and what is not kept is forgotten slice by slice.
        (roberta, RUN, "left", len(RUN)),
    ],
)
def test_no_more_is_tokenized_than_is_kept(
    make: Callable[[], RawTokenizer],
    text: str,
    side: Literal["left", "right"],
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []  # the characters of each slice
    take = SlicedText.take
    monkeypatch.setattr(SlicedText, "take", lambda text: taken.append(take(text)))
    tokenizer, options = Tokenizer(make()), Tokenization(truncate_to=16, truncation_side=side)
    parts = in_parts(tokenizer, text, options)
    assert sum(taken) <= most
    assert max(taken) < 150
    assert parts.ids == as_a_whole(tokenizer, text, options).ids
    assert parts.dropped < 100


def test_a_text_that_is_too_long_is_refused_if_it_is_byte_level_by_its_length() -> None:
    refused = in_parts(Tokenizer(minilm()), SPACED_TEXT, Tokenization())
    assert refused.at_least > MAX_MODEL_LEN
    assert refused.described.startswith("at least")
    tokenizer = Tokenizer.load(demo_models()["penstock-demo"])
    fewest = tokenizer.fewest_tokens("x" * 100_000)
    steps = tokenize_long(tokenizer, "x" * 100_000, Tokenization(), MAX_MODEL_LEN)
    assert next(steps) == Tokenized(b"", at_least=fewest)
    assert fewest > MAX_MODEL_LEN
    cut = in_parts(tokenizer, "x" * 100_000, Tokenization(truncate_to=3, add_special_tokens=False))
    assert cut.num_tokens == 3
