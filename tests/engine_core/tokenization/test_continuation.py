"""Pieces of prompts have the tokens that they have in the whole text, where these do not cross."""

from array import array

import pytest
from tokenizers import normalizers, pre_tokenizers

from engine_core.tokenization import sliced_text
from engine_core.tokenization.continuation import Piece, tokenize_each, tokenize_long_piece
from engine_core.tokenization.tokenized import Tokenized
from engine_core.tokenization.tokenizer import Tokenizer
from tests.engine_core.tokenization import tokenizer_folders as kinds
from tests.engine_core.tokenization.test_pipeline_rules import PREPEND, bpe

END = "<s>"
KINDS = {
    "prepend": {"normalizer": normalizers.Sequence(PREPEND)},
    "metaspace": {"pre_tokenizer": pre_tokenizers.Metaspace(prepend_scheme="first", split=False)},
    "always metaspace": {"pre_tokenizer": pre_tokenizers.Metaspace(split=False)},
    "prefix space": {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)},
    "no space": {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=False)},
}


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer(bpe(**KINDS[request.param]))


def joined(pieces: list[Tokenized]) -> list[int]:
    return array("i", b"".join(piece.ids for piece in pieces)).tolist()


def split(*texts: str) -> list[Piece]:
    return [Piece(text, bool(place)) for place, text in enumerate(texts)]


@pytest.mark.parametrize(
    "texts",
    [
        ("ab a", " ab b"),
        (f"a{END}", f"{END}ab b"),
        ("a", f" ab{END}a{END} b{END}{END}ab "),
        (f"{END}ab", " ab", f" b{END}a", " b"),
        (f"a <mask>{END}", f"{END}ab <mask>a"),
        ("", f"{END}ab", " a"),
        ("a", "", " b"),
        ("ab a", " ab a"),
    ],
)
def test_pieces_are_tokenized_as_in_the_whole(tokenizer: Tokenizer, texts: tuple[str, ...]) -> None:
    (whole,) = tokenizer.encodings(["".join(texts)], add_special_tokens=False)
    assert joined(tokenize_each(tokenizer, split(*texts))) == whole.ids


@pytest.mark.parametrize("continues", [False, True])
def test_a_long_piece_has_the_same_tokens(
    tokenizer: Tokenizer, continues: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sliced_text, "SLICE_CHARACTERS", 24)
    monkeypatch.setattr(sliced_text, "_CONTEXT", 32)
    piece = Piece("ab a " * 80, continues)
    *others, whole = tokenize_long_piece(tokenizer, piece, 1000)
    assert [whole] == tokenize_each(tokenizer, [piece])
    assert len(others) > 3
    *_, refused = tokenize_long_piece(tokenizer, piece, 20)
    assert refused is not None
    assert refused.at_least > 20


def test_equal_pieces_and_none() -> None:
    tokenizer = Tokenizer(kinds.gpt2().tokenizer)
    assert tokenize_each(tokenizer, []) == []
    one, other = tokenize_each(tokenizer, split("hello", "hello"))
    assert one == other
