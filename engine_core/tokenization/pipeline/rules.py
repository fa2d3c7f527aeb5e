"""What a tokenizer does with a text before its model: rules, as `tokenizer.json` writes them."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from tokenizers import Tokenizer
from tokenizers.normalizers import Normalizer
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import PreTokenizer
from tokenizers.pre_tokenizers import Sequence as PreTokenizers

Rule = dict[str, Any]
"""A type with its fields; or several rules, one after the other."""

_PartT = TypeVar("_PartT", Normalizer, PreTokenizer)
_SEVERAL = ("normalizers", "pretokenizers")


class PipelineRules(NamedTuple):
    """The rules of a tokenizer's normalizer and pre-tokenizer; empty where it has none."""

    normalizer: Rule
    pre_tokenizer: Rule

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "PipelineRules":
        """Those of `tokenizer`."""
        return cls(_rule(tokenizer.normalizer), _rule(tokenizer.pre_tokenizer))

    def changed(self, change: Callable[[Rule], Rule]) -> "PipelineRules":
        """The rules with `change` made to each of them."""
        return PipelineRules(*(_changed(rule, change) for rule in self))

    def single(self) -> Iterator[Rule]:
        """Each single rule, in order."""
        for rule in self:
            yield from _single(rule)

    def put_into(self, tokenizer: Tokenizer) -> None:
        """Let `tokenizer` have these rules."""
        if self.normalizer:
            tokenizer.normalizer = _read(Normalizers([]), self.normalizer)
        if self.pre_tokenizer:
            tokenizer.pre_tokenizer = _read(PreTokenizers([]), self.pre_tokenizer)


def _rule(part: Normalizer | PreTokenizer | None) -> Rule:
    return json.loads(part.__getstate__()) if part is not None else {}


def _read(part: _PartT, rule: Rule) -> _PartT:
    part.__setstate__(json.dumps(rule).encode())
    return part


def _changed(rule: Rule, change: Callable[[Rule], Rule]) -> Rule:
    for parts in _SEVERAL:
        if parts in rule:
            return rule | {parts: [_changed(part, change) for part in rule[parts]]}
    return change(rule)


def _single(rule: Rule) -> Iterator[Rule]:
    for parts in _SEVERAL:
        if parts in rule:
            for part in rule[parts]:
                yield from _single(part)
            return
    if rule:
        yield rule
