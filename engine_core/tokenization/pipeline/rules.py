"""What a tokenizer does with a text before its model: rules, as `tokenizer.json` writes them."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tokenizers import Tokenizer
from tokenizers.normalizers import Normalizer
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import PreTokenizer
from tokenizers.pre_tokenizers import Sequence as PreTokenizers

Rule = dict[str, Any]
"""A type with its fields."""


class PipelineRules(NamedTuple):
    """The rules of a tokenizer's normalizer and pre-tokenizer, in order; none where it has none."""

    normalizer: list[Rule]
    pre_tokenizer: list[Rule]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "PipelineRules":
        """Those of `tokenizer`."""
        return cls(_rules(tokenizer.normalizer), _rules(tokenizer.pre_tokenizer))

    @property
    def every(self) -> list[Rule]:
        """Those of both."""
        return self.normalizer + self.pre_tokenizer

    def changed(self, change: Callable[[Rule], Rule]) -> "PipelineRules":
        """The rules with `change` made to each of them; one that becomes empty is dropped."""
        return PipelineRules(*([new for rule in part if (new := change(rule))] for part in self))

    def put_into(self, tokenizer: Tokenizer) -> None:
        """Let `tokenizer` have these rules."""
        if self.normalizer:
            normalizers = Normalizers([])
            normalizers.__setstate__(_sequence("normalizers", self.normalizer))
            tokenizer.normalizer = normalizers
        if self.pre_tokenizer:
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
