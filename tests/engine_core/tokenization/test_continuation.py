"""What continues a text is tokenized without the space that a tokenizer puts before texts."""

from collections.abc import Callable

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE

from engine_core.tokenization.pipeline_rules import continuing

VOCABULARY = {"▁": 0, "Ġ": 1, "a": 2, "b": 3, "ab": 4, "▁a": 5, "Ġa": 6}
MERGES = [("a", "b"), ("▁", "a"), ("Ġ", "a")]


def bpe() -> Tokenizer:
    raw = Tokenizer(BPE(dict(VOCABULARY), list(MERGES)))
    raw.add_special_tokens(["<s>", AddedToken("<mask>", lstrip=True)])
    return raw


def with_metaspace() -> Tokenizer:
    raw = bpe()
    raw.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace()])
    return raw


def with_prefix_space() -> Tokenizer:
    raw = bpe()
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return raw


def with_prepend() -> Tokenizer:
    raw = bpe()
    rules = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁"), normalizers.Lowercase()]
    raw.normalizer = normalizers.Sequence(rules)
    return raw


def with_prepend_alone() -> Tokenizer:
    raw = bpe()
    raw.normalizer = normalizers.Prepend("▁")
    return raw


@pytest.mark.parametrize(
    "make", [with_metaspace, with_prefix_space, with_prepend, with_prepend_alone]
)
def test_nothing_is_put_before_it(make: Callable[[], Tokenizer]) -> None:
    raw = make()
    other = continuing(raw)
    assert raw.encode("ab").tokens != ["ab"]
    assert other.encode("ab").tokens == ["ab"]
    assert other.encode("ab<mask>").ids == [4, 8]
    spaced = raw.encode("ab ab").ids[1:]
    assert other.encode(" ab").ids == spaced[-len(other.encode(" ab").ids) :]
    assert raw.encode("ab").tokens != ["ab"], "the tokenizer itself is as it was"


def test_other_rules_stay() -> None:
    assert continuing(with_prepend()).encode("AB aB").tokens == ["ab", "▁", "ab"]


def test_without_such_a_rule_it_is_the_tokenizer_itself() -> None:
    raw = bpe()
    assert continuing(raw) is raw
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert continuing(raw) is raw
