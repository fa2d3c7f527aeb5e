"""The place behind a question where the text of a reply begins, as a template writes replies."""

import re
from collections.abc import Callable

from server.templates.protocol import Message

REPLY, THOUGHT = "zqreplyvx", "zqthoughtvx"
"""Words that stand for a reply and for the reasoning before it. No template contains them."""
_TAG = re.compile(
    r"(?P<open>[<\[]\|?)(?P<slash>/?)(?P<name>[\w:]*(?:think|thought|reason)[\w:]*)(?P<end>\|?[>\]])",
    re.IGNORECASE,
)


class OpenReasoningError(Exception):
    """The template opens reasoning by this tag, and has no text that closes it."""


def reply_place(begun: str, written: Callable[[Message], str], source: str) -> str:
    """The text between a question and its reply.

    `begun` is what the template, `source`, writes behind a question that is to be answered;
    `written` returns what it writes behind one that has this answer, and may raise anything. A
    header that all written answers have behind `begun` is part of the place. Reasoning that
    `begun` opens is closed, as between reasoning and answer or else by a tag that the source names.
    Raises OpenReasoningError.
    """
    place, found, _ = _written(written, {"content": REPLY}).partition(REPLY)
    if not (found and place.startswith(begun)):
        place = begun
    tag = _open_tag(place)
    if tag is None:
        return place
    thinking = _written(written, {"content": REPLY, "reasoning_content": THOUGHT})
    closing, found, _ = thinking.partition(THOUGHT)[2].partition(REPLY)
    if found and _open_tag(place + closing) is None:
        return place + closing
    closing_tag = f"{tag['open']}/{tag['name']}{tag['end']}"
    if closing_tag not in source:
        raise OpenReasoningError(tag[0])
    return f"{place}\n{closing_tag}\n\n"


def _open_tag(text: str) -> re.Match[str] | None:
    """The last tag of reasoning, if it opens some."""
    *_, last = [None, *_TAG.finditer(text)]
    return None if last is None or last["slash"] else last


def _written(written: Callable[[Message], str], reply: Message) -> str:
    try:
        return written({"role": "assistant", **reply})
    except Exception:  # a template is a program, and may raise anything
        return ""
