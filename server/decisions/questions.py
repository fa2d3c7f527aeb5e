"""How questions are read: the input, each question behind it, and the labels that may answer it.

The input's conversation is rendered once, with a word in the question's place, and cut there. A
question is a row of three pieces: what is before that place, its text, and what is behind it, up to
where a reply begins. What is read there are the probabilities of the labels.
"""

import asyncio
import re
import secrets
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from starlette.requests import Request

from engine_core.client.pending_jobs import FloatArray, Read
from engine_core.messages import JobOptions
from engine_core.refusal import RefusalError
from engine_core.tokenization.tokenizer import Tokenizer
from server.decisions.turns import Turn, joined
from server.generation.conversation import ChatOptions, chat_prompt
from server.schemas.chat import ChatMessage
from server.schemas.common import invalid, renamed
from server.service.label_tokens import LabelKind
from server.service.service import (
    Model,
    client_options,
    count_rows,
    record_of,
    service_of,
    within_limit,
)
from workers.contract.messages import LIKELIEST

_NO_THINKING = {"enable_thinking": False, "thinking": False}
"""The variables by which templates let a reply begin without reasoning."""
_LETTERS = str.maketrans("0123456789", "ghijklmnop")
_TASKS: dict[LabelKind, str] = {
    "letters": "Answer with only the letter of the option that fits best.",
    "digits": "Answer with only the number of the level that fits best.",
    "truths": "Is this true? Answer with only true or false.",
}
TRUTHS = ("true", "false")
_ROW = re.compile(r"prompts\[(\d+)\]")
_MESSAGE = re.compile(r"messages(?:\[(\d+)\])?")


class Asked(NamedTuple):
    """A question in a `field` of the request. Its `options`, in a field of their own, get labels of
    this kind, of which one answers it."""

    field: str
    text: str
    kind: LabelKind
    options: Sequence[str]
    options_field: str


class Shares(NamedTuple):
    """Each label's probability beside the others, and that of all over the whole vocabulary, where
    one of them may be the likeliest token of all."""

    each: list[float]
    mass: float
    has_likeliest: bool

    @property
    def confidence(self) -> float:
        """The probability, over the whole vocabulary, of the likeliest label."""
        return self.each[self.likeliest] * self.mass

    @property
    def likeliest(self) -> int:
        """The place of the likeliest label, the first of equals."""
        return self.each.index(max(self.each))

    @property
    def mean(self) -> float:
        """The mean of the labels' places, from 0."""
        return sum(place * share for place, share in enumerate(self.each))


class Input(NamedTuple):
    """The subject of questions, and the chat template's `variables`. `field` has all its text."""

    field: str
    turns: Sequence[Turn]
    variables: dict[str, Any]


class Readings(NamedTuple):
    """The labels' shares for each question. The input counts once in the numbers of tokens; so many
    of its own were in the prefix cache, others were not."""

    shares: list[Shares]
    tokens: int
    cached: int
    uncached: int


class _Prompt(NamedTuple):
    """A question's prompt but for its text."""

    before: str
    behind: str


class _Labelled(NamedTuple):
    """A question's text with its labels, and the labels of its options."""

    text: str
    ending: str
    ids: list[int]


def check_distinct(values: Sequence[str | bool], field: str, of_each: str = "") -> None:
    """Raises RefusalError for equal values, naming the second one's `field`, and a field in it."""
    places: dict[str | bool, int] = {}
    for place, value in enumerate(values):
        if (first := places.setdefault(value, place)) != place:
            raise invalid(f"{field}[{place}]{of_each}", f"is that of {field}[{first}], too")


def line(name: str, description: str | None) -> str:
    """An option as the model reads it."""
    return f"{name}: {description}" if description else name


async def read(
    request: Request,
    model: Model,
    given: Input,
    questions: Sequence[Asked],
    options: JobOptions,
) -> Readings:
    """Read every question behind the input's turns. `options` get the client's key and salt.

    Raises RefusalError, naming the field: a template that refuses the turns, a question with more
    options than the model has labels, one that does not fit behind the input.
    """
    prompt = await _prompt(request, model, given)
    labelled: list[_Labelled] = []
    for question in questions:
        labelled.append(_labelled(question, model, prompt.behind))
        await asyncio.sleep(0)  # a question may have many options
    texts = [each.text for each in labelled]
    model.text_bound.check_all(texts, lambda row: questions[row].field)
    service, record = service_of(request), record_of(request)
    endings = list(dict.fromkeys(each.ending for each in labelled))
    first = len(labelled) + 1
    options = client_options(request, options)
    with service.in_flight:
        reading = model.engines.choose(options).read(
            pieces=[prompt.before, *texts, *endings],
            prompts=[
                (0, number, first + endings.index(each.ending))
                for number, each in enumerate(labelled, 1)
            ],
            tokens=[array("i", [*each.ids, LIKELIEST]).tobytes() for each in labelled],
            options=options,
        )
        try:
            found = await within_limit(service.limits, record, reading)
        except RefusalError as error:
            raise _of_question(error, questions, given) from None
    readings = _readings(found)
    rows = len(readings.shares)
    count_rows(request, model, rows, readings.tokens, readings.cached, found.timing)
    return readings


async def _prompt(request: Request, model: Model, given: Input) -> _Prompt:
    mark = f"zq{secrets.token_hex(8).translate(_LETTERS)}vx"
    messages = [(turn.role, joined(turn.texts)) for turn in given.turns]
    role, text = messages.pop() if messages and messages[-1][0] == "user" else ("user", "")
    messages.append((role, joined([text, mark])))
    if model.chat.is_missing:
        written = _plain(messages, model.tokenizer)
        model.text_bound.check_length(len(written), given.field)
    else:
        written = await _rendered(request, model, given, messages, mark)
    before, _, behind = written.partition(mark)
    return _Prompt(before, behind)


def _plain(messages: list[tuple[str, str]], tokenizer: Tokenizer) -> str:
    """The prompt of a model without a template.

    Each message is under its role, with blank lines between them, behind the special tokens that
    any text begins with."""
    (encoding,) = tokenizer.encodings(["a"])
    count = [*encoding.special_tokens_mask, 0].index(0)
    beginning = "".join(map(tokenizer.token_bytes.entry, encoding.ids[:count]))
    turns = [f"{role}:\n{text}" for role, text in [*messages, ("assistant", "")]]
    return beginning + joined(turns)


async def _rendered(
    request: Request,
    model: Model,
    given: Input,
    messages: list[tuple[str, str]],
    mark: str,
) -> str:
    options = ChatOptions(
        add_generation_prompt=True,
        continue_final_message=False,
        variables=_NO_THINKING | given.variables,
        question=mark,
    )
    talk = [ChatMessage(role=role, content=text) for role, text in messages]
    try:
        return await chat_prompt(request, model, talk, options)
    except RefusalError as error:
        at_fault = _MESSAGE.match(error.param or "")
        if error.param is None or at_fault is None:
            raise
        place = int(at_fault[1] or 0)
        # The last turn may be the questions' own.
        named = given.turns[place].field if place < len(given.turns) else "questions"
        field = given.field if at_fault[1] is None else named
        raise renamed(error, error.param, field + error.param[at_fault.end() :]) from None


def _labelled(question: Asked, model: Model, behind: str) -> _Labelled:
    """Raises RefusalError if the model has too few labels."""
    kind, options = question.kind, question.options
    labels = model.labels.behind(behind, kind)
    if kind == "truths" and len(labels.ids) < len(options):
        kind = "letters"
        labels = model.labels.behind(behind, kind)
    if len(labels.ids) < len(options):
        reason = f"{len(options)} options; model {model.name} has labels of one token for at most "
        raise invalid(question.options_field, f"{reason}{len(labels.ids)}")
    if kind == "truths":
        lines = [option for option in options if option not in TRUTHS]
    else:
        lines = [f"{label}. {option}" for label, option in zip(labels.ids, options, strict=False)]
    text = joined([question.text, "\n".join(lines), _TASKS[kind]])
    return _Labelled(text, labels.ending, [*labels.ids.values()][: len(options)])


def _of_question(error: RefusalError, questions: Sequence[Asked], given: Input) -> RefusalError:
    """`error` with the question, and the fields before it, in place of the engine's prompt."""
    row = _ROW.fullmatch(error.param or "")
    if row is None:
        return error
    field = questions[int(row[1])].field
    before = dict.fromkeys(turn.field.partition("[")[0] for turn in given.turns)
    message = error.message.replace(row[0], f"{field} behind {' and '.join(before)}", 1)
    return replace(error, message=message, param=field)


def _readings(found: Read) -> Readings:
    shared, rows = found.piece_tokens[0], len(found.values)
    cached = min(found.cached, shared)
    return Readings(
        shares=[_shares(values) for values in found.values],
        tokens=sum(found.prompt_tokens) - (rows - 1) * shared,
        cached=cached,
        uncached=shared - cached,
    )


def _shares(values: FloatArray) -> Shares:
    """From natural logarithms of probabilities over the whole vocabulary, the last one's that of
    the likeliest token."""
    logs = values[:-1].astype(np.float64)
    best = logs.max()
    each = np.exp(logs - best)
    total = each.sum()
    mass = min(float(total * np.exp(best)), 1.0)
    return Shares((each / total).tolist(), mass, has_likeliest=bool(best >= values[-1]))
