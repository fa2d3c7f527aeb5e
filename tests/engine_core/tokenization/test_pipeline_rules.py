"""What a tokenizer's rules say: what continues a text, and how few tokens a text can have."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.models import BPE

from engine_core.tokenization.pipeline_rules import continuing, longest_token
from engine_core.tokenization.tokenizer import Tokenizer as OurTokenizer
from server.demo import demo_models

VOCABULARY = {"▁": 0, "Ġ": 1, "a": 2, "b": 3, "ab": 4, "▁a": 5, "Ġa": 6}
MERGES = [("a", "b"), ("▁", "a"), ("Ġ", "a")]
PREPEND = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁"), normalizers.Lowercase()]
_DEMO = OurTokenizer.load(demo_models()["penstock-demo"])


def bpe(**parts: Any) -> Tokenizer:
    raw = Tokenizer(BPE(dict(VOCABULARY), list(MERGES)))
    raw.add_special_tokens(["<s>", AddedToken("<mask>", lstrip=True)])
    return changed(raw, parts)


def changed(raw: Tokenizer, parts: dict[str, Any]) -> Tokenizer:
    for name, part in parts.items():
        setattr(raw, name, part)
    return raw


@pytest.mark.parametrize(
    "parts",
    [
        {"pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.Metaspace()])},
        {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)},
        {"normalizer": normalizers.Sequence(PREPEND)},
        {"normalizer": normalizers.Prepend("▁")},
    ],
    ids=["metaspace", "prefix space", "prepend and others", "prepend"],
)
def test_nothing_is_put_before_what_continues_a_text(parts: dict[str, Any]) -> None:
    raw = bpe(**parts)
    other = continuing(raw)
    assert raw.encode("ab").tokens != ["ab"]
    assert other.encode("ab").tokens == ["ab"]
    assert other.encode("ab<mask>").ids == [4, 8]
    spaced = raw.encode("ab ab").ids[1:]
    assert other.encode(" ab").ids == spaced[-len(other.encode(" ab").ids) :]
    assert raw.encode("ab").tokens != ["ab"], "the tokenizer itself is as it was"


def test_other_rules_stay_and_without_such_a_rule_it_is_the_tokenizer_itself() -> None:
    raw = bpe(normalizer=normalizers.Sequence(PREPEND))
    assert continuing(raw).encode("AB aB").tokens == ["ab", "▁", "ab"]
    for raw in (bpe(), bpe(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False))):
        assert continuing(raw) is raw


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
    raw.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    assert longest_token(raw) is None, "it takes any number of spaces"


DROPS_SPACES = [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(use_regex=False)]


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("pre_tokenizer", pre_tokenizers.Sequence(DROPS_SPACES)),
        ("pre_tokenizer", pre_tokenizers.Whitespace()),
        ("pre_tokenizer", None),
        ("normalizer", normalizers.NFKC()),
        ("model", models.BPE({"a": 0}, [])),
        ("model", models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")),
    ],
    ids="drops-spaces no-bytes splits-nothing normalized unknown word-piece".split(),
)
def test_a_tokenizer_that_may_drop_something_has_no_bound(part: str, other: Any) -> None:
    raw = changed(byte_level(), {part: other})
    assert longest_token(raw) is None
    assert OurTokenizer(raw).fewest_tokens("x" * 1000) == 0


@settings(max_examples=200)
@given(st.text() | st.lists(st.sampled_from(_DEMO.raw.decode([*range(300, 400)]))).map("".join))
def test_no_text_has_fewer(text: str) -> None:
    (ids,) = _DEMO.encode([text], add_special_tokens=False)
    assert len(ids) // 4 >= _DEMO.fewest_tokens(text)
