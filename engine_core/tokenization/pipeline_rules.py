"""The rules of a tokenizer for a text before its model, as `tokenizer.json` writes them."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import Normalizer
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer
from tokenizers.pre_tokenizers import Sequence as PreTokenizers

Rule = dict[str, Any]
"""A type with its fields."""


class PipelineRules(NamedTuple):
    """The rules of a tokenizer's normalizer and pre-tokenizer, in order. None where it has none."""

    normalizer: list[Rule]
    pre_tokenizer: list[Rule]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "PipelineRules":
        return cls(_rules(tokenizer.normalizer), _rules(tokenizer.pre_tokenizer))

    @property
    def every(self) -> list[Rule]:
        return self.normalizer + self.pre_tokenizer

    def changed(self, change: Callable[[Rule], Rule]) -> "PipelineRules":
        """The rules with `change` made to each of them. One that becomes empty is dropped."""
        return PipelineRules(*([new for rule in part if (new := change(rule))] for part in self))

    def put_into(self, tokenizer: Tokenizer) -> None:
        """Let a tokenizer have these rules, where its own are others."""
        if self.normalizer != _rules(tokenizer.normalizer):
            normalizers = Normalizers([])
            normalizers.__setstate__(_sequence("normalizers", self.normalizer))
            tokenizer.normalizer = normalizers
        if self.pre_tokenizer != _rules(tokenizer.pre_tokenizer):
            pre_tokenizers = PreTokenizers([])
            pre_tokenizers.__setstate__(_sequence("pretokenizers", self.pre_tokenizer))
            tokenizer.pre_tokenizer = pre_tokenizers


def _rules(part: Normalizer | PreTokenizer | None) -> list[Rule]:
    return [] if part is None else list(_flat(json.loads(part.__getstate__())))


def _flat(rule: Rule) -> Iterator[Rule]:
    several = rule.get("normalizers", rule.get("pretokenizers"))
    if several is None:
        yield rule
    for each in several or ():
        yield from _flat(each)


def _sequence(key: str, rules: list[Rule]) -> bytes:
    return json.dumps({"type": "Sequence", key: rules}).encode()


def continuing(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer with the same rules, but for those that put a space before a text.

    That is `tokenizer` itself where there are none. Such rules also put a space behind an added
    token.
    """
    rules = PipelineRules.of(tokenizer)
    if (without := rules.changed(_without_prefix)) == rules:
        return tokenizer
    other = Tokenizer(tokenizer.model)
    without.put_into(other)
    added = tokenizer.get_added_tokens_decoder()
    other.add_tokens([added[token] for token in sorted(added)])  # pyright: ignore[reportUnknownMemberType]
    return other


def _without_prefix(rule: Rule) -> Rule:
    if rule["type"] == "Prepend":
        return {}
    if rule["type"] == "Metaspace":
        return rule | {"prepend_scheme": "never"}
    return rule | {"add_prefix_space": False} if "add_prefix_space" in rule else rule


def longest_token(tokenizer: Tokenizer) -> int | None:
    """The most bytes of a text that one token spells, or None without a bound.

    A normalizer may drop characters, as may splitting, an unknown token, and an added one that
    takes white space.
    """
    model = tokenizer.model
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    added = tokenizer.get_added_tokens_decoder().values()
    if (
        not isinstance(model, BPE)
        or tokenizer.normalizer is not None
        or not _keeps_all(tokenizer)
        or any(character not in vocabulary for character in ByteLevel.alphabet())
        or any(token.lstrip or token.rstrip for token in added)
    ):
        return None
    # An entry of the vocabulary has a character a byte.
    return max(len(each) for each in [*vocabulary, *(token.content.encode() for token in added)])


def _keeps_all(tokenizer: Tokenizer) -> bool:
    """Whether texts are turned into bytes, and nothing before that drops a part."""
    rules = PipelineRules.of(tokenizer).every
    if not rules or rules[-1]["type"] != "ByteLevel":
        return False
    return all(
        rule["type"] == "Digits" or (rule["type"] == "Split" and rule["behavior"] != "Removed")
        for rule in rules[:-1]
    )
