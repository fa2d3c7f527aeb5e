"""Learns the format of a model's turns from what its chat template writes.

Small turns with marker words are rendered: one call and two, one argument and two, values of each
type, reasoning. Their differences are the format.
"""

import json
import math
import re
from typing import NamedTuple

from engine_core.turn_format import CallFormat, IdForm, Members, Reasoning, Slot, TurnFormat
from server.templates.affixes import (
    common_prefix,
    common_suffix,
    first_marker,
    last_marker,
    whole_suffix,
)
from server.templates.learnt_members import learn_members
from server.templates.loaded_template import LoadedTemplate
from server.templates.turn_writer import (
    FIRST,
    FOREIGN_IDS,
    IDS,
    KEY,
    NAMED_IDS,
    SECOND,
    TEXT,
    THOUGHT,
    VALUE,
    TurnWriter,
)
from server.turns.turn_parser import Call, TurnParser, calls_of

_NAME, _ARGUMENTS, _ID, _INDEX = "\ue000", "\ue001", "\ue002", "\ue003"
_SLOTS = {
    _NAME: Slot("name"),
    _ARGUMENTS: Slot("arguments"),
    _ID: Slot("id"),
    _INDEX: Slot("index"),
}
_CLOSING_TAG = re.compile(r"</((?:\w+:)?think\w*(?::\w+)?)>")
_SAMPLE = {KEY: VALUE}


class NotLearntError(Exception):
    """A template's turns have no format that can be learnt, for this reason."""


def learn(template: LoadedTemplate, seconds: float = math.inf) -> TurnFormat:
    """The format of the turns that a template writes. Raises NotLearntError, and TooSlowError after
    `seconds` of processor time. A rendering may take any time and memory."""
    writer = TurnWriter(template, seconds=seconds)
    one, ids = _one_call(writer)
    around = _around(writer, one)
    calls = _calls(writer, one, around)
    form = TurnFormat(
        reasoning=around.reasoning, text_markers=around.markers, calls=(calls,), ids=ids
    )
    check(writer, form)
    return form


def _one_call(writer: TurnWriter) -> tuple[str, IdForm]:
    """The turn of one call, and the ids that the template takes."""
    one = writer.call(**_SAMPLE)
    if one is None or not _has_call(one):
        writer.take_tools()
        one = writer.call(**_SAMPLE)
    if one is None:
        raise NotLearntError("its chat template refuses calls of tools")
    if not _has_call(one):
        raise NotLearntError("its chat template leaves out calls of tools, or parts of them")
    if NAMED_IDS[0] in one:
        writer.ids = NAMED_IDS
        return one, "functions.name:index"
    foreign = writer.calls(Call(FIRST, _SAMPLE), ids=FOREIGN_IDS)
    return one, "any" if foreign is not None else "nine letters"


def _has_call(text: str) -> bool:
    return all(word in text for word in (FIRST, KEY, VALUE))


class _Around(NamedTuple):
    """What stands around text and calls: the markers of reasoning, the end of a turn, others."""

    reasoning: Reasoning | None
    end: str
    markers: tuple[str, ...]


def _around(writer: TurnWriter, one: str) -> _Around:
    prompt, answer = writer.prompt(), writer.answer(TEXT)
    before, _, end = answer.partition(TEXT)
    found = _reasoning(writer)
    opening = before[len(common_prefix(prompt, before)) :]
    closing = end[: len(end) - len(common_suffix(end, one))]
    between = ""
    if found:
        opening = opening.rpartition(found.reasoning.close)[2]
        between = found.behind
    texts = (opening, closing, between, between.strip().removesuffix(opening.strip()))
    markers = dict.fromkeys(text.strip() for text in texts if first_marker(text.strip()))
    return _Around(found.reasoning if found else None, end, tuple(markers))


class _FoundReasoning(NamedTuple):
    """Reasoning's markers, and what else stands before an answer."""

    reasoning: Reasoning
    behind: str


def _reasoning(writer: TurnWriter) -> _FoundReasoning | None:
    """The markers of reasoning, as the template writes it or else names its end."""
    before, found, behind = writer.answer(TEXT, THOUGHT).partition(THOUGHT)
    close, answered, _ = behind.partition(TEXT)
    if not (found and answered):
        turn = writer.calls(Call(FIRST, _SAMPLE), reasoning=THOUGHT) or ""
        before, found, close = turn.partition(THOUGHT)
        close = first_marker(close.lstrip())
    if not (found and close.strip()):
        if (tag := _CLOSING_TAG.search(writer.source)) is None:
            return None
        return _FoundReasoning(Reasoning(open=f"<{tag[1]}>", close=tag[0]), "")
    close = close.strip()
    marker = first_marker(close) or close
    opening, plain = _opening(writer, before), writer.answer(TEXT)
    if not opening or (opening in plain and marker not in plain):
        opening = writer.prompt()[len(common_prefix(writer.prompt(), before)) :].strip()
    reasoning = Reasoning(open=opening, close=marker)
    return _FoundReasoning(reasoning, close.removeprefix(marker)) if opening else None


def _opening(writer: TurnWriter, before: str) -> str:
    """The text by which reasoning begins, of a turn's text `before` it."""
    for other in (writer.prompt(), writer.answer(TEXT), writer.prompt(enable_thinking=False)):
        if opening := before[len(common_prefix(before, other)) :].strip():
            return opening
    return last_marker(before)


def _calls(writer: TurnWriter, one: str, around: _Around) -> CallFormat:
    """The format of calls. Raises NotLearntError."""
    two = writer.calls(Call(FIRST, _SAMPLE), Call(SECOND, _SAMPLE))
    written, members = _arguments(writer, one)
    one = _with_slots(one, written)
    two = _with_slots(two, written) if two is not None and SECOND in two else None
    before, _, behind = one.partition(_ARGUMENTS)
    start = _start(before, writer.prompt(), around)
    opening = before[start:].lstrip()
    if two is None or two.count(_ARGUMENTS) != 2:
        close = behind[: len(behind) - len(common_suffix(behind, around.end))].rstrip()
        return _checked(CallFormat(call=_pieces(opening + _ARGUMENTS + close), members=members,
                                   many=False))  # fmt: skip
    first, between, rest = two.split(_ARGUMENTS)
    left, first, starts_from = _aligned(first[start:], between)
    between = between[: len(between) - len(left)]
    right = common_prefix(between, rest)
    close = rest[len(right) :]
    close = close[: len(close) - len(common_suffix(close, around.end))].strip()
    return _checked(
        CallFormat(
            open=first.lstrip() if first.strip() else "",
            call=_pieces(left.lstrip() + _ARGUMENTS + right.rstrip()),
            between=between[len(right) :].strip() and between[len(right) :],
            close=close,
            members=members,
            starts_from=starts_from,
        )
    )


def _arguments(writer: TurnWriter, one: str) -> tuple[str, Members | None]:
    """The sample's arguments as `one` writes them, and their format if they are no JSON."""
    for start in range(one.find(KEY), -1, -1):
        if one[start] == "{":
            try:
                found, end = json.JSONDecoder().raw_decode(one, start)
            except ValueError:
                continue
            if found == _SAMPLE:
                return one[start:end], None
    learnt = learn_members(writer, one)
    if learnt is None:
        raise NotLearntError("its chat template writes arguments of tools in no known form")
    return learnt


def _with_slots(text: str, arguments: str) -> str:
    text = text.replace(arguments, _ARGUMENTS)
    for name in (FIRST, SECOND):
        text = text.replace(name, _NAME)
    for call_id in IDS:
        text = text.replace(call_id, _ID)
    return text


def _start(before: str, prompt: str, around: _Around) -> int:
    """Where the calls of a turn begin."""
    start = len(common_prefix(before, prompt))
    ends = (around.reasoning.close, *around.markers) if around.reasoning else around.markers
    return max([start, *(before.rfind(end) + len(end) for end in ends if end in before)])


def _aligned(first: str, second: str) -> tuple[str, str, int]:
    """The text before the arguments of both calls, from where it is the same; what precedes it in
    the first; the number of the first call. Numbers of calls become slots."""
    length, starts_from = 0, 0
    while length < min(len(first), len(second)):
        one, other = first[-length - 1], second[-length - 1]
        if one != other:
            if not (one.isdigit() and other.isdigit() and int(other) == int(one) + 1):
                break
            starts_from = int(one)
            first = first[: -length - 1] + _INDEX + first[len(first) - length :]
            second = second[: -length - 1] + _INDEX + second[len(second) - length :]
        length += 1
    length = whole_suffix(first, second, length)
    split = len(first) - length
    return first[split:], first[:split], starts_from


def _pieces(text: str) -> tuple[str | Slot, ...]:
    pieces = re.split(f"([{''.join(_SLOTS)}])", text)
    return tuple(_SLOTS.get(piece, piece) for piece in pieces if piece)


def _checked(form: CallFormat) -> CallFormat:
    """Raises NotLearntError if calls begin as text may begin."""
    if Slot("name") not in form.call:
        raise NotLearntError("its chat template leaves out the names of tools")
    if not (form.marker or form.opening[:1] in ("{", "[")):
        raise NotLearntError("its calls of tools begin like text")
    return form


def check(writer: TurnWriter, form: TurnFormat) -> None:
    """Raises NotLearntError if a format does not read the calls that the template writes."""
    if not form.calls:
        raise NotLearntError("it has no calls of tools")
    first, second = Call(FIRST, _SAMPLE), Call(SECOND, {})
    several = form.calls[0].many and SECOND in (writer.calls(first, second) or "")
    calls = [first, second] if several else [first]
    for said, reasoning in (("", ""), ("", THOUGHT), (TEXT, "")):
        text = writer.calls(*calls, text=said, reasoning=reasoning) or ""
        if said and (not form.calls[0].marker or FIRST not in text):
            continue  # such calls stand alone
        header = common_prefix(writer.prompt(), text)
        parser = TurnParser(form, {FIRST: {}, SECOND: {}}, header)
        if calls_of([*parser.feed(text[len(header) :]), *parser.finish()]) != calls:
            raise NotLearntError("its calls of tools cannot be read back")
