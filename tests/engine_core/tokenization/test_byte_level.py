"""How few tokens a text can have, from the vocabulary alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from engine_core.tokenization.pipeline_rules import longest_token
from engine_core.tokenization.tokenizer import Tokenizer as OurTokenizer
from server.demo import demo_models

_DEMO = OurTokenizer.load(demo_models()["penstock-demo"])


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate([*alphabet, "he", "hel"])}
    raw = Tokenizer(models.BPE(vocabulary, [("h", "e"), ("he", "l")]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return raw


def test_the_longest_entry_counts_in_bytes() -> None:
    raw = byte_level()
    assert longest_token(raw) == 3
    raw.add_special_tokens(["<é>"])
    assert longest_token(raw) == 4


def drops_spaces(raw: Tokenizer) -> None:
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(use_regex=False)]
    )


def is_normalized(raw: Tokenizer) -> None:
    raw.normalizer = normalizers.NFKC()


def takes_white_space(raw: Tokenizer) -> None:
    raw.add_special_tokens([AddedToken("<mask>", lstrip=True)])


def has_no_bytes(raw: Tokenizer) -> None:
    raw.pre_tokenizer = pre_tokenizers.Whitespace()


def has_unknown(raw: Tokenizer) -> None:
    raw.model = models.BPE({"a": 0}, [])


def splits_nothing(raw: Tokenizer) -> None:
    raw.pre_tokenizer = None  # pyright: ignore[reportAttributeAccessIssue]


def is_word_piece(raw: Tokenizer) -> None:
    raw.model = models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")


@pytest.mark.parametrize(
    "change",
    [drops_spaces, is_normalized, takes_white_space, has_no_bytes, has_unknown, splits_nothing,
     is_word_piece],
)  # fmt: skip
def test_a_tokenizer_that_may_drop_something_has_no_bound(change: object) -> None:
    raw = byte_level()
    assert callable(change)
    change(raw)
    assert longest_token(raw) is None
    assert OurTokenizer(raw).fewest_tokens("x" * 1000) == 0


@settings(max_examples=200, deadline=None)
@given(st.text() | st.lists(st.sampled_from(_DEMO.raw.decode([*range(300, 400)]))).map("".join))
def test_no_text_has_fewer(text: str) -> None:
    (ids,) = _DEMO.encode([text], add_special_tokens=False)
    assert len(ids) // 4 >= _DEMO.fewest_tokens(text)
