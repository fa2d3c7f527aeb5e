"""Messages of which probes are made: each tells words, which a template writes or leaves out."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from server.templates.messages.kinds import Kind, Message, text_part

# Small letters only, because templates escape, cut, strip, and change case.
_WORD = re.compile("zq[a-j]+vx")
_LETTERS = str.maketrans("0123456789", "abcdefghij")


def word(number: int) -> str:
    """One of the words that no template has of its own."""
    return f"zq{str(number).translate(_LETTERS)}vx"


def words_in(text: str) -> set[str]:
    """All such words of a text."""
    return set(_WORD.findall(text.lower()))


TEXT, MORE, NAME, THOUGHT, TOOL, KEY, VALUE = map(word, range(7))
NO_ROLE, _SPARE = "qxrole", "qxspare"
# Signs that a template has printed a list of parts, or arguments, as something else.
MISTAKEN = (_SPARE, f'\\"{KEY}', f"'{KEY}'")

USER: Message = {"role": "user", "content": "Hello"}
ASSISTANT: Message = {"role": "assistant", "content": "Hi"}


def parts(*texts: str) -> list[dict[str, str]]:
    """A content of text parts, with a key in each that only a template shows which prints lists."""
    return [{**text_part(text), _SPARE: _SPARE} for text in texts]


def calling(*names: str, arguments: str = "{}", number: int = 1) -> Message:
    """An assistant's message with calls; `number` is in the first one's id."""
    calls = [
        {"id": _id(at), "type": "function", "function": {"name": name, "arguments": arguments}}
        for at, name in enumerate(names, number)
    ]
    return {"role": "assistant", "tool_calls": calls}


def result(content: str, number: int = 1) -> Message:
    """What a tool has answered to a call."""
    return {"role": "tool", "name": "f", "tool_call_id": _id(number), "content": content}


def _id(number: int) -> str:
    """Some templates take no id but one of nine letters and digits."""
    return f"call{number:05}"


# With words for its name, and a key and a value of its arguments.
TELLING_CALL = calling(TOOL, arguments=f'{{"{KEY}": "{VALUE}"}}')
TELLING_CALLS = calling(TOOL, MORE)


def message_of(kind: Kind, text: str, number: int = 1) -> Message:
    """A message of a kind that tells `text`; calls and results have the id of this number."""
    if kind.has_calls:
        return calling(text, number=number)
    return result(text, number) if kind.role == "tool" else {"role": kind.role, "content": text}


class Place(NamedTuple):
    """The messages around the probed one."""

    before: Sequence[Message]
    after: Sequence[Message]


_BOTH_RESULTS = [result("1"), result("2", 2)]
FIRST = [Place([], after) for after in ([], [USER], [USER, ASSISTANT, USER])]
LATER = [
    Place(before, after)
    for before in ([USER, ASSISTANT], [USER, calling("f")], [USER])
    for after in ([], [USER], [ASSISTANT, USER])
]
OF_CALLS = [
    Place([USER], after)
    for after in ([], [result("1")], _BOTH_RESULTS, [result("1"), ASSISTANT, USER], [USER])
]
