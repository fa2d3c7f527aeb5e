"""Rules in llguidance's Lark: literals, raw text and JSON over one tokenizer."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_TERMINALS = r"""
space: SPACE?
SPACE: /[ \n]{1,4}/
ID: /[A-Za-z0-9_]{1,40}/
NINE: /[A-Za-z0-9]{9}/
INDEX: /[0-9]{1,4}/
KEY: /[A-Za-z_][A-Za-z0-9_]{0,60}/
INTEGER: /-?(0|[1-9][0-9]{0,17})/
NUMBER: /-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][-+]?[0-9]{1,2})?/
QUOTED: /"([^"\\\x00-\x1f]|\\["\\nrt])*"|'([^'\\\x00-\x1f]|\\['\\nrt])*'/
"""
JSON_WHITESPACE = r" |\n {0,40}"
"""A space, or a line break with its indentation: JSON may be laid out, but not be endless
blanks."""


class LarkRules:
    """The rules of one grammar. Methods return expressions."""

    def __init__(self, special: Mapping[str, int]) -> None:
        """`special` are the tokenizer's special tokens by their text: literals hold them whole."""
        self._special = special
        longest_first = sorted(special, key=len, reverse=True)
        self._specials = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._rules: list[str] = []
        self._names: dict[str, str] = {}  # of rules by what stands behind their names

    def grammar(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._rules, _TERMINALS])

    def rule(self, body: str, attributes: str = "") -> str:
        """The name of a rule. Those of one body are one."""
        text = f"{attributes}: {body}"
        if text not in self._names:
            self._names[text] = name = f"r{len(self._rules)}"
            self._rules.append(name + text)
        return self._names[text]

    def recursive(self, body: Callable[[str], str]) -> str:
        """A rule whose body is made of its name, which may stand within it."""
        number = len(self._rules)
        self._rules.append("")
        self._rules[number] = f"r{number}: {body(f'r{number}')}"
        return f"r{number}"

    def literal(self, text: str) -> str:
        """A literal as the parser reads it: any white space, or none, where there is some."""
        parts = filter(None, re.split(r"(\s+)", text))
        return " ".join("space" if part.isspace() else self.exact(part) for part in parts) or '""'

    def exact(self, text: str) -> str:
        """A literal to the letter."""
        return (
            " ".join(
                quoted(part) if token is None else f"<[{token}]>"
                for part, token in self._parts(text)
            )
            or '""'
        )

    def pattern(self, text: str) -> bytes:
        """The regular expression of such a literal over tokens' bytes, as `special_bytes` has
        them."""
        return rb"\s*".join(self._word_pattern(word) for word in text.split())

    def last_byte(self, text: str) -> int:
        """The last byte of such a literal, as `special_bytes` has it."""
        *_, (part, token) = self._parts(text.rsplit(maxsplit=1)[-1])
        return (part.encode() if token is None else special_bytes(token))[-1]

    def until(self, close: str) -> str:
        """Raw text, and `close` behind it, at which it ends."""
        if close in self._special:
            return self.rule(f"/(?s:.*)/ {self.exact(close)}")
        return self.rule("/(?s:.*)/", f"[suffix={quoted(close)}]")

    def json(self, schema: Mapping[str, Any]) -> str:
        return self.rule(json_body(schema))

    def _word_pattern(self, word: str) -> bytes:
        return b"".join(
            re.escape(part.encode() if token is None else special_bytes(token))
            for part, token in self._parts(word)
        )

    def _parts(self, word: str) -> Iterator[tuple[str, int | None]]:
        """The special tokens of a word, and what lies between."""
        at = 0
        for found in self._specials.finditer(word):
            if at < found.start():
                yield word[at : found.start()], None
            yield found[0], self._special[found[0]]
            at = found.end()
        if at < len(word):
            yield word[at:], None


def special_bytes(token: int) -> bytes:
    """The stand-in for a special token among bytes of text: no text has this byte."""
    return b"\xff[%d]" % token


def json_body(schema: Mapping[str, Any]) -> str:
    """The body of a rule for what a schema describes."""
    within = {"x-guidance": {"whitespace_pattern": JSON_WHITESPACE}}
    return f"%json {json.dumps({**schema, **within})}"


def quoted(text: str) -> str:
    """A text as a literal of Lark."""
    return json.dumps(text, ensure_ascii=False)
