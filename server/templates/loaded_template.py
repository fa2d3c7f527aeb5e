"""A chat template as transformers understands it, compiled and probed.

Small conversations with marker words show what it writes, and which forms of messages it takes.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import product
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from msgspec.structs import replace

from server.errors import quoted
from server.templates.protocol import ChatTemplate, Conversation, Message, has_text, text_part
from server.templates.reply_place import OpenReasoningError, reply_place

# A prompt's most. A longer one would be refused for `MAX_PENDING_TOKENS` all the same.
_MAX_CHARS = 16 * 1024 * 1024

PROBING_S = 1.0
"""Of processor time for probing. Anything later counts as written."""

# All names under which published templates look for earlier reasoning.
_REASONING_NAMES = ("reasoning_content", "reasoning", "thinking", "thought", "tool_plan")
REASONING_FIELDS = ("reasoning_content", "reasoning")
"""The fields in which a client's message may have reasoning."""
# Conversations with variables or tools whose manners are remembered.
_KNOWN_MANNERS = 16


class LoadedTemplate:
    """Renders prompts, and refuses messages that the template would leave out."""

    def __init__(self, template: ChatTemplate) -> None:
        """Raises TemplateError. May take any time and memory, as prompts may."""
        self._tokens = template.tokens
        self.source = template.source
        self.response_template = template.response_template
        self._compiled = _compile(template.source)
        self.manners = self.manners_with({})
        self._manners_of = lru_cache(_KNOWN_MANNERS)(self._probed_manners)

    def prompt(self, conversation: Conversation) -> str:
        """The prompt of a client's messages. Raises LeftOutError, TemplateError for a refusal, and
        whatever else the template raises."""
        try:
            messages = self.manners.checked(conversation.messages)
        except LeftOutError:
            manners = self._manners_in(conversation)
            if manners is self.manners:
                raise
            messages = manners.checked(conversation.messages)
        shaped = replace(conversation, messages=messages)
        return self._to_reply(shaped) if conversation.question else self.render(shaped)

    def lost_reasoning(self, conversation: Conversation) -> str:
        """The first field with reasoning, if the template writes that nowhere, else empty."""
        if self.manners.lost_reasoning(conversation.messages):
            return self._manners_in(conversation).lost_reasoning(conversation.messages)
        return ""

    def _manners_in(self, conversation: Conversation) -> ProbedManners:
        """The manners with a conversation's variables and tools. These may have the template write
        what it otherwise leaves out."""
        variables, tools = conversation.variables, (conversation.tools or [])[:1]
        if not (variables or tools):
            return self.manners
        return self._manners_of(msgspec.json.encode((variables, tools)))

    def _probed_manners(self, encoded: bytes) -> ProbedManners:
        return self.manners_with(*msgspec.json.decode(encoded))

    def _to_reply(self, asking: Conversation) -> str:
        """The prompt of shaped messages with a question, up to where a reply's text begins. Raises
        LeftOutError, naming `model`, if there is no such place."""
        prompt, mark = self.render(asking), asking.question
        if prompt.count(mark) != 1:
            raise LeftOutError("model", "the text of a question, or changes or repeats it")
        before, _, begun = prompt.partition(mark)

        def written(reply: Message) -> str:
            messages = [*asking.messages, self.manners.shaped_reply(reply)]
            talk = replace(asking, messages=messages, add_generation_prompt=False)
            return self.render(talk).partition(mark)[2]

        try:
            return before + mark + reply_place(begun, written, self.source)
        except OpenReasoningError as error:
            what = f"the end of the reasoning that it begins with {error}"
            raise LeftOutError("model", what) from None

    def manners_with(
        self,
        variables: dict[str, Any],
        tools: Sequence[dict[str, Any]] = (),
        seconds: float = PROBING_S,
    ) -> ProbedManners:
        """The template's manners in conversations with these, found in so much time."""

        def render(messages: list[Message]) -> str:
            return self.render(
                Conversation(messages=messages, tools=[*tools] or None, variables=variables)
            )

        return ProbedManners(render, seconds)

    def render(self, conversation: Conversation) -> str:
        """The prompt of messages as they are. Raises whatever the template does."""
        if conversation.continue_final_message:
            prompt = self._open_ended(conversation)
        else:
            prompt = self._whole(conversation)
        prompt.encode()
        return prompt

    def _whole(self, conversation: Conversation) -> str:
        variables = {
            **self._tokens,
            **conversation.variables,
            "messages": conversation.messages,
            "tools": conversation.tools,
            "documents": None,
            "add_generation_prompt": conversation.add_generation_prompt,
        }
        pieces: list[str] = []
        room = _MAX_CHARS
        for piece in self._compiled.generate(variables):
            room -= len(piece)
            if room < 0:
                raise TemplateError(f"it makes more than {_MAX_CHARS} characters of them")
            pieces.append(piece)
        return "".join(pieces)

    def _open_ended(self, conversation: Conversation) -> str:
        """The prompt up to the end of the last message's text, found by a mark in it."""
        *before, last = conversation.messages
        # The blank behind the mark shows whether the template strips contents.
        word = f"end-{secrets.token_hex(8)}"
        marked = {**last, "content": _followed_by(f"{word} ", last["content"])}
        closed = replace(conversation, messages=[*before, marked], add_generation_prompt=False)
        text = self._whole(closed)
        end = text.rfind(word)
        if end < 0:
            raise TemplateError(
                "it leaves out the final message, which therefore cannot be continued"
            )
        stripped = not text.startswith(" ", end + len(word))
        return text[:end].rstrip() if stripped else text[:end]


class UnfitFieldError(Exception):
    """The template does not fit a `field` of the request, for the reason in the message."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field


class LeftOutError(UnfitFieldError):
    """The template leaves out `field`."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(field, f"this model's chat template leaves out {what}")


def _compile(source: str) -> Template:
    """Raises TemplateError. May take any time and memory, as rendering may."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _GenerationTag],
    )
    environment.filters["tojson"] = _to_json  # pyright: ignore[reportUnknownMemberType]
    names = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment.from_string(source, globals=names)


def _followed_by(text: str, content: str | list[dict[str, str]]) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content + text
    *before, last = content
    return [*before, {**last, "text": last["text"] + text}]


class _GenerationTag(Extension):
    """`{% generation %}`, which marks the assistant's text for training: here only a scope."""

    tags = {"generation"}  # noqa: RUF012 -- Jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        """The tag's body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML's markup.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


class _Kind(NamedTuple):
    """Messages that are written alike: by role, first or later place, and calls of tools."""

    role: str
    is_first: bool
    has_calls: bool = False


_REPLY = _Kind("assistant", is_first=False)


class _Manner(NamedTuple):
    """The way in which a template writes a kind of message: its role, the forms of its content.

    One that takes neither strings nor several parts takes one part. `is_written` is None if the
    template refuses the kind, False if it leaves it out in every form.
    """

    role: str
    takes_strings: bool = True
    takes_parts: bool = False
    is_written: bool | None = None
    loses_name: bool = False

    def content(self, content: str | list[dict[str, str]]) -> str | list[dict[str, str]]:
        """A client's content in a form that the template takes."""
        if isinstance(content, list):
            if self.takes_parts:
                return content
            content = "\n".join(part["text"] for part in content)
        return content if self.takes_strings else [text_part(content)]


class _CallManner(NamedTuple):
    """The way in which a template writes tool calls. `no_content` stands for an assistant's
    missing text. Names may be written as a part of ids only."""

    arguments_are_text: bool = False
    no_content: Message = {}  # noqa: RUF012 -- nothing changes it
    names_in_ids: bool = False
    is_written: bool | None = None
    loses_second: bool = False

    def shaped(self, message: Message) -> Message:
        """A message with tool calls in the form that the template takes."""
        shaped = {**message, "tool_calls": [self._call(call) for call in message["tool_calls"]]}
        if not has_text(message):
            shaped.pop("content", None)
            shaped |= self.no_content
        return shaped

    def _call(self, call: Message) -> Message:
        function = call["function"]
        if self.names_in_ids and function["name"] not in call["id"]:
            call = {**call, "id": f"functions.{function['name']}:0"}
        if self.arguments_are_text:
            return call
        return {
            **call,
            "function": {**function, "arguments": msgspec.json.decode(function["arguments"])},
        }


def kinds_of(messages: Sequence[Message]) -> list[_Kind]:
    """The kind of each message of a conversation."""
    kinds: list[_Kind] = []
    for message in messages:
        has_calls = bool(message.get("tool_calls"))
        kinds.append(_Kind(message["role"], not kinds and not has_calls, has_calls))
    return kinds


def _shaped_message(message: Message, manner: _Manner, calls: _CallManner) -> Message:
    shaped = {**message, "role": manner.role}
    if "content" in message:
        shaped["content"] = manner.content(message["content"])
    if message.get("tool_calls"):
        shaped = calls.shaped(shaped)
    if (name := reasoning_name(message)) is not None:
        shaped |= dict.fromkeys(_REASONING_NAMES, message[name])
    return shaped


def reasoning_name(message: Message) -> str | None:
    """The field in which a client's message has reasoning, if it has any."""
    return next((name for name in REASONING_FIELDS if name in message), None)


# Small letters only, because templates escape, cut, strip, and change case.
_WORD = re.compile("zq[a-j]+vx")
_LETTERS = str.maketrans("0123456789", "abcdefghij")


def _word(number: int) -> str:
    """The marker word of this number, which no template contains."""
    return f"zq{str(number).translate(_LETTERS)}vx"


def _words_in(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


_TEXT, _MORE, _NAME, _THOUGHT, _TOOL, _KEY, _VALUE = map(_word, range(7))
_NO_ROLE, _SPARE = "qxrole", "qxspare"
# Signs that a template has printed a list of parts, or arguments, as something else.
_MISTAKEN = (_SPARE, f'\\"{_KEY}', f"'{_KEY}'")

_USER: Message = {"role": "user", "content": "Hello"}
_ASSISTANT: Message = {"role": "assistant", "content": "Hi"}


def _parts(*texts: str) -> list[dict[str, str]]:
    """Text parts with a spare key each. Only templates that print lists as such show it."""
    return [{**text_part(text), _SPARE: _SPARE} for text in texts]


def _calling(*names: str, arguments: str = "{}", number: int = 1) -> Message:
    """An assistant's message with calls, whose ids count from `number`."""
    calls = [
        {"id": _id(at), "type": "function", "function": {"name": name, "arguments": arguments}}
        for at, name in enumerate(names, number)
    ]
    return {"role": "assistant", "tool_calls": calls}


def _result(content: str, number: int = 1) -> Message:
    return {"role": "tool", "name": "f", "tool_call_id": _id(number), "content": content}


def _id(number: int) -> str:
    """An id of nine letters and digits, which all templates take."""
    return f"call{number:05}"


# With words for its name, and a key and a value of its arguments.
_TELLING_CALL = _calling(_TOOL, arguments=f'{{"{_KEY}": "{_VALUE}"}}')
_TELLING_CALLS = _calling(_TOOL, _MORE)
_NO_CONTENTS: list[Message] = [{}, {"content": ""}, {"content": None}]


def _message_of(kind: _Kind, text: str, number: int = 1) -> Message:
    """A message of this kind with `text`. A call or result has the id of `number`."""
    if kind.has_calls:
        return _calling(text, number=number)
    return _result(text, number) if kind.role == "tool" else {"role": kind.role, "content": text}


_Place = tuple[Sequence[Message], Sequence[Message]]
"""Messages before and after the probed one."""

_BOTH_RESULTS = [_result("1"), _result("2", 2)]
_FIRST: list[_Place] = [([], after) for after in ([], [_USER], [_USER, _ASSISTANT, _USER])]
_LATER: list[_Place] = [
    (before, after)
    for before in ([_USER, _ASSISTANT], [_USER, _calling("f")], [_USER])
    for after in ([], [_USER], [_ASSISTANT, _USER])
]
_OF_CALLS: list[_Place] = [
    ([_USER], after)
    for after in ([], [_result("1")], _BOTH_RESULTS, [_result("1"), _ASSISTANT, _USER], [_USER])
]

_UNUSUAL = 64
"""The most unusual kinds, and orders, that are remembered, and the most kinds of one talk."""
_NAMED_BY_THEIR_CALLS = ("tool", "function")
_ROLE_LETTERS = {"system": "s", "developer": "s", "user": "u", "assistant": "a", "tool": "t"}
# A system message, then a user's; tools' results behind their calls; a user's message at last.
_COMMON_ORDER = re.compile("s?(?:u(?:a|ct*)*)*u")


def _of(*roles: str) -> list[_Kind]:
    return [_Kind(role, is_first) for role in roles for is_first in (True, False)]


# In the order of probing: those before stand around those behind.
_USUAL = [
    *_of("user", "assistant"),
    _Kind("assistant", is_first=False, has_calls=True),
    *_of("system", "tool", "developer"),
]


class _Trial(NamedTuple):
    """The outcome for a message: written, left out (False) or refused (None), and a place where it
    is written."""

    message: Message
    written: bool | None
    place: _Place | None = None


class ProbedManners:
    """A template's manners. The usual ones are probed at once; unusual roles and orders of messages
    when they first come."""

    def __init__(self, render: Callable[[list[Message]], str], seconds: float) -> None:
        """`render` renders messages as they are, and may raise anything. Probing takes at most
        `seconds`, and little more."""
        self._render = render
        self._until = time.process_time() + seconds
        self._usual = {kind: _Manner(kind.role) for kind in _USUAL}
        self._unusual = lru_cache(_UNUSUAL)(self._probed)
        self._calls = _CallManner()
        for kind in _USUAL:
            if kind.has_calls:
                self._calls = self._probed_calls()
            self._usual[kind] = self._probed_usual(kind)
        self._loses_reasoning = self._writes_reasoning() is False
        self._until = math.inf
        self._lost_by_order = lru_cache(_UNUSUAL)(self._probed_order)

    @property
    def leave_out_calls(self) -> bool:
        """True if calls of tools are left out."""
        return self._calls.is_written is False

    def leave_out(self, role: str, *, is_first: bool = False) -> bool | None:
        """True if messages of a role are left out. None if they are refused."""
        written = self._manner(_Kind(role, is_first)).is_written
        return None if written is None else not written

    def lost_reasoning(self, messages: Sequence[Message]) -> str:
        """The first field with reasoning, if it is left out wherever it stands, else empty."""
        for place, message in enumerate(messages if self._loses_reasoning else ()):
            if (name := reasoning_name(message)) and message[name]:
                return f"messages[{place}].{name}"
        return ""

    def checked(self, messages: Sequence[Message]) -> list[Message]:
        """Clients' messages in the forms that the template takes. Raises LeftOutError, and
        TemplateError for too many kinds of messages."""
        kinds = kinds_of(messages)
        if len(set(kinds)) > _UNUSUAL:
            raise TemplateError(f"they have more than {_UNUSUAL} roles")
        for place, (message, kind) in enumerate(zip(messages, kinds, strict=True)):
            self._check(message, kind, f"messages[{place}]")
        if field := self.lost_reasoning(messages):
            raise LeftOutError(field, "the reasoning of earlier answers")
        for place in self._lost_places(kinds):
            if kinds[place].has_calls or has_text(messages[place]):
                what = f"a message of role {quoted(kinds[place].role)} among messages in this order"
                raise LeftOutError(f"messages[{place}].role", what)
        return self.shaped(messages, kinds)

    def shaped(self, messages: Sequence[Message], kinds: Sequence[_Kind]) -> list[Message]:
        return [
            _shaped_message(message, self._manner(kind), self._calls)
            for message, kind in zip(messages, kinds, strict=True)
        ]

    def shaped_reply(self, message: Message) -> Message:
        """An assistant's message behind others."""
        return _shaped_message(message, self._manner(_REPLY), self._calls)

    def _manner(self, kind: _Kind) -> _Manner:
        return self._usual.get(kind) or self._unusual(kind)

    def _check(self, message: Message, kind: _Kind, path: str) -> None:
        """Raises LeftOutError for a field that is left out of all messages of this kind."""
        manner = self._manner(kind)
        if kind.has_calls and self._calls.is_written is False:
            raise LeftOutError(f"{path}.tool_calls", "tool calls")
        if kind.has_calls and self._calls.loses_second and len(message["tool_calls"]) > 1:
            raise LeftOutError(f"{path}.tool_calls[1]", "all tool calls of a message but the first")
        if manner.is_written is False and has_text(message):
            if kind.has_calls:
                what = "an assistant's text or the tool calls beside it"
                raise LeftOutError(f"{path}.content", what)
            place = "first" if kind.is_first else "later"
            raise LeftOutError(f"{path}.role", f"a {place} message of role {quoted(kind.role)}")
        # A name that is the role says nothing.
        if manner.loses_name and message.get("name", "") not in ("", kind.role):
            raise LeftOutError(f"{path}.name", f"names in messages of role {quoted(kind.role)}")

    def _lost_places(self, kinds: Sequence[_Kind]) -> Sequence[int]:
        """The places of messages that the template leaves out because of others, such as a second
        system message, or a tool's result without a call."""
        letters = ["c" if kind.has_calls else _ROLE_LETTERS.get(kind.role, "x") for kind in kinds]
        common = _COMMON_ORDER.fullmatch("".join(letters))
        return () if common else self._lost_by_order(tuple(kinds))

    def _probed_order(self, kinds: Sequence[_Kind]) -> Sequence[int]:
        messages: list[Message] = []
        calls = 0
        for place, kind in enumerate(kinds):
            calls += kind.has_calls
            messages.append(_message_of(kind, _word(place), calls))
        try:
            written = _words_in(self._render(self.shaped(messages, kinds_of(messages))))
        except Exception:  # a template is a program, and may raise anything
            return ()
        return [place for place in range(len(kinds)) if _word(place) not in written]

    def _probed_usual(self, kind: _Kind) -> _Manner:
        """An unknown developer gets the system's manner."""
        manner = self._probed(kind)
        if kind.role == "developer" and not (manner.is_written and self._knows(kind)):
            system = self._usual[kind._replace(role="system")]
            return system if system.is_written else manner
        return manner

    def _knows(self, kind: _Kind) -> bool:
        """True if the template writes this role otherwise than an invented one."""
        role, other = kind.role, kind._replace(role=_NO_ROLE)
        for place in _places(kind):
            prompt = self._prompt(_message_of(kind, _TEXT), place)
            if prompt is not None:
                same = self._prompt(_message_of(other, _TEXT), place)
                return same is None or prompt.lower() != same.lower().replace(_NO_ROLE, role)
        return True

    def _probed(self, kind: _Kind) -> _Manner:
        places = _places(kind)
        message = self._calls.shaped(_TELLING_CALL) if kind.has_calls else _message_of(kind, _TEXT)
        string = self._trial({**message, "content": _TEXT}, places)
        places = [string.place] if string.place else places
        several = self._trial({**message, "content": _parts(_TEXT, _MORE)}, places)
        trials = [string, several]
        if not (string.written or several.written):
            trials.append(self._trial({**message, "content": _parts(_TEXT)}, places))
        written = _summary(trials)
        return _Manner(
            role=kind.role,
            takes_strings=bool(string.written) or not written,
            takes_parts=bool(several.written),
            is_written=written,
            loses_name=kind.role not in _NAMED_BY_THEIR_CALLS and self._loses_name(trials),
        )

    def _loses_name(self, trials: Sequence[_Trial]) -> bool:
        for trial in trials:
            if trial.place:
                return self._writes({**trial.message, "name": _NAME}, trial.place) is False
        return False

    def _probed_calls(self) -> _CallManner:
        """The manner that writes calls in most places, else the most common one."""
        found: list[tuple[int, _CallManner]] = []
        outcomes: set[bool | None] = set()
        for in_ids, are_text, content in product((False, True), (False, True), _NO_CONTENTS):
            manner = _CallManner(are_text, content, in_ids)
            message = manner.shaped(_TELLING_CALL)
            written = [self._writes(message, place) for place in _OF_CALLS]
            outcomes |= {*written}
            found.append((written.count(True), manner))
            if all(written):
                break
        places, best = max(found, key=itemgetter(0))
        if not places:
            return _CallManner(is_written=False if False in outcomes else None)
        two = self._trial(best.shaped(_TELLING_CALLS), _OF_CALLS)
        return best._replace(is_written=True, loses_second=two.written is False)

    def _writes_reasoning(self) -> bool | None:
        """True if the template writes reasoning anywhere. Many leave out that of earlier turns."""
        reasoning = dict.fromkeys(_REASONING_NAMES, _THOUGHT)
        messages = [{"role": "assistant", "content": _TEXT}, _TELLING_CALL]
        answer, call = self.shaped(messages, kinds_of(messages))
        trials = [self._trial(answer | reasoning, _LATER), self._trial(call | reasoning, _OF_CALLS)]
        return _summary(trials)

    def _trial(self, message: Message, places: Sequence[_Place]) -> _Trial:
        """Look for a place in which the template writes all of `message`."""
        written = None
        for place in places:
            outcome = self._writes(message, place)
            if outcome:
                return _Trial(message, True, place)
            written = False if outcome is False else written
        return _Trial(message, written)

    def _writes(self, message: Message, place: _Place) -> bool | None:
        prompt = self._prompt(message, place)
        if prompt is None:
            return None
        is_mistaken = any(sign in prompt.lower() for sign in _MISTAKEN)
        return _words_in(str(message)) <= _words_in(prompt) and not is_mistaken

    def _prompt(self, message: Message, place: _Place) -> str | None:
        """The prompt with `message` as it is. None if the template refuses it."""
        if time.process_time() > self._until:
            return None
        before, after = place
        around = [*before, _USER, *after]
        messages = self.shaped(around, kinds_of(around))
        messages[len(before)] = message
        try:
            return self._render(messages)
        except Exception:  # a template is a program, and may raise anything
            return None


def _places(kind: _Kind) -> Sequence[_Place]:
    return _OF_CALLS if kind.has_calls else _FIRST if kind.is_first else _LATER


def _summary(trials: Sequence[_Trial]) -> bool | None:
    """True if any is written. None if all are refused."""
    outcomes = {trial.written for trial in trials}
    return True if True in outcomes else False if False in outcomes else None
