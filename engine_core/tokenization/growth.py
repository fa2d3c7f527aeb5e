"""How many times longer a text may become by the rules in a `tokenizer.json`.

Rules that replace texts multiply what they find: seven that write ten letters for one make 10^7.
"""

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

_MOST = 1000
"""Times that rules may lengthen a text. Those of Llama 2 make 12 of 1, those of XLM-R 16."""
_MOST_RULES = 1000
_LONGEST_AFFIX = 64
_OF_UNICODE = 11
"""Times that one of Unicode's forms may lengthen a text. Changing the case does less."""
_LONGEST_OF_UNICODE = 33
"""Bytes that NFKC makes of one character, U+FDFA."""
_FORMS = frozenset("NFC NFD NFKC NFKD Lowercase BertNormalizer".split())


class _Rule(msgspec.Struct):
    """The fields of any kind of rule that matter here: the library needs no type to tell a rule."""

    type: str = ""
    normalizers: "list[_Rule]" = []
    pretokenizers: "list[_Rule]" = []
    processors: "list[_Rule]" = []
    decoders: "list[_Rule]" = []
    pattern: dict[str, str] | None = None
    content: str = ""
    prepend: str = ""
    replacement: str = ""
    precompiled_charsmap: str | None = None
    trim_offsets: bool | None = None
    single: list[dict[str, dict[str, Any]]] = []
    pair: list[dict[str, dict[str, Any]]] = []
    special_tokens: dict[str, dict[str, Any]] = {}

    def single_rules(self) -> "Iterator[_Rule]":
        several = (*self.normalizers, *self.pretokenizers, *self.processors, *self.decoders)
        for rule in several:
            yield from rule.single_rules()
        if not several:
            yield self


class _Model(msgspec.Struct, frozen=True):
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None


class _TokenizerFile(msgspec.Struct):
    normalizer: _Rule | None = None
    pre_tokenizer: _Rule | None = None
    post_processor: _Rule | None = None
    decoder: _Rule | None = None
    model: _Model = _Model()


def check_growth(data: bytes) -> float:
    """Return how many times longer, in bytes, the rules of a `tokenizer.json` may make a text. What
    a form of Unicode does to the text itself is not counted.

    For use before the library reads the file: it normalizes the added tokens at once. Raises
    ValueError for a tokenizer that multiplies texts, or for what is none.
    """
    file = msgspec.json.decode(data, type=_TokenizerFile)
    before = [*_single("normalizer", file.normalizer)]
    before += _single("pre_tokenizer", file.pre_tokenizer)
    growth = _growth("normalizer and pre_tokenizer", before)
    _growth("decoder", _single("decoder", file.decoder))
    _check_templates(_single("post_processor", file.post_processor))
    for affix in (file.model.continuing_subword_prefix, file.model.end_of_word_suffix):
        if affix and len(affix) > _LONGEST_AFFIX:
            raise ValueError(f"its model adds {len(affix)} characters to each part of a word")
    return growth


def _single(part: str, rule: _Rule | None) -> list[_Rule]:
    rules = [] if rule is None else list(rule.single_rules())
    if len(rules) > _MOST_RULES:
        raise ValueError(f"its {part} has {len(rules)} rules; at most {_MOST_RULES} are obeyed")
    return rules


def _growth(part: str, rules: Sequence[_Rule]) -> float:
    growth, written = 1.0, False
    for rule in rules:
        growth *= _factor(rule, written=written)
        written = written or _writes_other_letters(rule)
    if growth > _MOST:
        raise ValueError(f"its {part} may make a text more than {_MOST} times longer")
    return growth


def _factor(rule: _Rule, *, written: bool) -> float:
    """How many times longer one rule may make a text. `written` are letters of other rules in it,
    which a form of Unicode may lengthen again."""
    if rule.pattern is not None and rule.content:
        found = len(rule.pattern.get("String", "").encode())
        new = len(rule.content.encode())
        return max(1, new / found) if found else 1 + new  # a regular expression may find nothing
    if rule.precompiled_charsmap:
        longest = _longest(rule.precompiled_charsmap)
        return longest if written else max(1, longest / _LONGEST_OF_UNICODE)
    if rule.type in _FORMS:
        return _OF_UNICODE if written else 1
    if rule.type == "ByteLevel" or rule.trim_offsets is not None:
        return 2
    return 1 + len((rule.prepend + rule.replacement).encode())


def _writes_other_letters(rule: _Rule) -> bool:
    """Whether a rule may put letters beyond ASCII into a text."""
    ascii_only = (rule.content + rule.prepend).isascii()
    return not ascii_only or rule.precompiled_charsmap is not None or rule.type == "ByteLevel"


def _longest(charsmap: str) -> int:
    """Bytes of the longest text in a map of sentencepiece. Behind a trie, and its length, each text
    ends with NUL."""
    data = base64.b64decode(charsmap)
    size = int.from_bytes(data[:4], "little")
    return max(map(len, data[4 + size :].split(b"\0")))


def _check_templates(processors: Sequence[_Rule]) -> None:
    """Raises ValueError where a template repeats a text, or adds many tokens."""
    for template in (pieces for rule in processors for pieces in (rule.single, rule.pair)):
        texts = [str(piece["Sequence"].get("id")) for piece in template if "Sequence" in piece]
        if len(texts) > len(set(texts)):
            raise ValueError("its post_processor repeats a text")
    added = sum(
        len(rule.special_tokens[name].get("ids", ()))
        for rule in processors
        for piece in (*rule.single, *rule.pair)
        if (name := str(piece.get("SpecialToken", {}).get("id"))) in rule.special_tokens
    )
    if added > _MOST:
        raise ValueError(f"its post_processor adds {added} tokens; at most {_MOST} are supported")
