"""The tokenizer for what continues a text: it puts nothing before it."""

import json
from typing import Any, TypeVar

from tokenizers import Tokenizer
from tokenizers.normalizers import Normalizer
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import PreTokenizer
from tokenizers.pre_tokenizers import Sequence as PreTokenizers

_Rule = dict[str, Any]
_PartT = TypeVar("_PartT", Normalizer, PreTokenizer)
_NO_NORMALIZER: _Rule = {"type": "Sequence", "normalizers": []}


def continuing(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer with the same model and rules, but for those that put a space before a text;
    `tokenizer` itself where there are none.

    Such rules also put a space behind an added token, which this tokenizer does not.
    """
    rules = _rule(tokenizer.normalizer), _rule(tokenizer.pre_tokenizer)
    normalizer, pre_tokenizer = map(_without_prefix, rules)
    if (normalizer, pre_tokenizer) == rules:
        return tokenizer
    other = Tokenizer(tokenizer.model)
    if normalizer:
        other.normalizer = _read(Normalizers([]), normalizer)
    if pre_tokenizer:
        other.pre_tokenizer = _read(PreTokenizers([]), pre_tokenizer)
    added = tokenizer.get_added_tokens_decoder()
    other.add_tokens([added[token] for token in sorted(added)])  # pyright: ignore[reportUnknownMemberType]
    return other


def _rule(part: Normalizer | PreTokenizer | None) -> _Rule:
    return json.loads(part.__getstate__()) if part is not None else {}


def _read(part: _PartT, rule: _Rule) -> _PartT:
    part.__setstate__(json.dumps(rule).encode())
    return part


def _without_prefix(rule: _Rule) -> _Rule:
    for parts in ("normalizers", "pretokenizers"):
        if parts in rule:
            return rule | {parts: list(map(_without_prefix, rule[parts]))}
    if rule.get("type") == "Prepend":
        return _NO_NORMALIZER
    if rule.get("type") == "Metaspace":
        return rule | {"prepend_scheme": "never"}
    return rule | {"add_prefix_space": False} if "add_prefix_space" in rule else rule
