"""Labels are strings of one token each where a reply begins, and no two are the same token."""

import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers

from engine_core.tokenization.tokenizer import Tokenizer
from server.service.label_tokens import LabelTokens

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def labels_of_words(*words: str, lowercase: bool = False) -> LabelTokens:
    """Those of a model that knows these words alone."""
    vocabulary = {word: number for number, word in enumerate(["<unk>", "said", *words])}
    raw = RawTokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if lowercase:
        raw.normalizer = normalizers.Lowercase()
    return LabelTokens(Tokenizer(raw))


def sentencepiece(scheme: str = "first", *special: str) -> Tokenizer:
    """One that puts a space before texts, and has tokens of a space with A or B."""
    alphabet = ["<unk>", "▁", *LETTERS, *"0123456789x", "▁A", "▁B"]
    merges = [("▁", "A"), ("▁", "B")]
    vocabulary = {entry: number for number, entry in enumerate(alphabet)}
    raw = RawTokenizer(models.BPE(vocabulary, merges, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    raw.decoder = decoders.Metaspace(prepend_scheme=scheme, split=False)
    raw.add_special_tokens(list(special))
    return Tokenizer(raw)


def test_letters_come_before_pairs_in_their_order():
    labels = labels_of_words("BA", "Z", "AB", "A", "B", "ABC", "C1", "a")
    assert [*labels.behind("said ", "letters").ids] == ["A", "B", "Z", "AB", "BA"]
    assert [*labels.behind("said ", "letters").ids.values()] == [5, 6, 3, 4, 2]


def test_digits_end_at_the_first_that_is_no_token():
    assert [*labels_of_words("1", "0", "3").behind("said ", "digits").ids] == ["0", "1"]
    assert labels_of_words("1", "2").behind("said ", "digits").ids == {}


def test_a_bytes_tokenizer_has_all_letters_and_digits(tokenizer):
    labels = LabelTokens(tokenizer)
    assert "".join(labels.behind("said:\n", "letters").ids) == LETTERS
    assert "".join(labels.behind("said:\n", "digits").ids) == "0123456789"
    assert labels.behind("said:\n", "truths").ids == {}, "they are several tokens"


@pytest.mark.parametrize("words", [("A", "B"), ("a", "b")])
def test_letters_may_be_small_to_the_model(words):
    labels = labels_of_words(*words, "true", "false", lowercase=words[0].islower())
    assert [*labels.behind("said ", "letters").ids] == ["A", "B"]
    assert [*labels.behind("said ", "truths").ids] == ["true", "false"]


def test_a_space_before_the_reply_belongs_to_its_first_token():
    tokenizer = sentencepiece()
    joined = LabelTokens(tokenizer).behind("x ", "letters")
    assert joined.ending == "x"
    assert joined.ids == {letter: tokenizer.raw.token_to_id(f"▁{letter}") for letter in "AB"}
    apart = LabelTokens(tokenizer).behind("x ", "digits")
    assert apart.ending == "x "
    assert apart.ids == {digit: tokenizer.raw.token_to_id(digit) for digit in "0123456789"}


@pytest.mark.parametrize("scheme", ["first", "always"])
def test_a_reply_continues_the_prompt_but_behind_a_token_that_texts_begin_behind(scheme):
    tokenizer = sentencepiece(scheme, "[/INST]")
    labels = LabelTokens(tokenizer)
    alone = {letter: tokenizer.raw.token_to_id(letter) for letter in LETTERS}
    spaced = {letter: tokenizer.raw.token_to_id(f"▁{letter}") for letter in "AB"}
    assert labels.behind("x" * 100, "letters").ids == alone
    begun = labels.behind("x[/INST]", "letters").ids
    assert begun == (spaced if scheme == "always" else alone)
