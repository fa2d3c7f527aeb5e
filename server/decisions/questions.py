"""How questions are read: the input, each question behind it, and the labels that may answer it.

The input's conversation is rendered once, with a word in the question's place, and cut there. A
question is a row of three pieces: what is before that place, its text, and what is behind it, up to
where a reply begins. What is read there are the probabilities of the labels.
"""

import asyncio
import re
import secrets
import time
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
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
from server.service.service import Model, record_of, service_of, within_limit

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
    """Each label's probability beside the others, and that of all over the whole vocabulary."""

    each: list[float]
    mass: float

    @property
    def confidence(self) -> float:
        """The probability, over the whole vocabulary, of the likeliest label."""
        return max(self.each) * self.mass


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


async def read(
    request: Request,
    model: Model,
    turns: Sequence[Turn],
    questions: Sequence[Asked],
    options: JobOptions,
) -> Readings:
    """Read every question behind the input's turns. `options` get the client's key and salt.

    Raises RefusalError, naming the field: a template that refuses the turns, a question with more
    options than the model has labels, one that does not fit behind the input.
    """
    prompt = await _prompt(request, model, turns)
    labelled: list[_Labelled] = []
    for question in questions:
        labelled.append(_labelled(question, model, prompt.behind))
        await asyncio.sleep(0)  # a question may have many options
    texts = [each.text for each in labelled]
    model.text_bound.check_all(texts, lambda row: questions[row].field)
    service, record = service_of(request), record_of(request)
    client = record.client
    endings = list(dict.fromkeys(each.ending for each in labelled))
    first = len(labelled) + 1
    with service.in_flight:
        reading = model.client.read(
            pieces=[prompt.before, *texts, *endings],
            prompts=[
                (0, number, first + endings.index(each.ending))
                for number, each in enumerate(labelled, 1)
            ],
            tokens=[array("i", each.ids).tobytes() for each in labelled],
            options=msgspec.structs.replace(
                options, cache_salt=client.salt + options.cache_salt, key=client.share
            ),
        )
        try:
            found = await within_limit(service.limits, record, reading)
        except RefusalError as error:
            raise _of_question(error, questions) from None
    readings = _readings(found)
    _count(request, model, found, readings)
    return readings


async def _prompt(request: Request, model: Model, turns: Sequence[Turn]) -> _Prompt:
    mark = f"zq{secrets.token_hex(8).translate(_LETTERS)}vx"
    messages = [(turn.role, joined(turn.texts)) for turn in turns]
    role, text = messages.pop() if messages and messages[-1][0] == "user" else ("user", "")
    messages.append((role, joined([text, mark])))
    if model.chat.is_missing:
        written = _plain(messages, model.tokenizer)
        model.text_bound.check_length(len(written), "input")
    else:
        written = await _rendered(request, model, turns, messages, mark)
    before, _, behind = written.partition(mark)
    return _Prompt(before, behind)


def _plain(messages: list[tuple[str, str]], tokenizer: Tokenizer) -> str:
    """The prompt of a model without a template: each message under its role, blank lines between
    them, behind the special tokens that any text begins with."""
    (encoding,) = tokenizer.encodings(["a"])
    count = [*encoding.special_tokens_mask, 0].index(0)
    beginning = "".join(map(tokenizer.token_bytes.entry, encoding.ids[:count]))
    turns = [f"{role}:\n{text}" for role, text in [*messages, ("assistant", "")]]
    return beginning + joined(turns)


async def _rendered(
    request: Request,
    model: Model,
    turns: Sequence[Turn],
    messages: list[tuple[str, str]],
    mark: str,
) -> str:
    options = ChatOptions(
        add_generation_prompt=True,
        continue_final_message=False,
        variables=_NO_THINKING,
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
        named = turns[place].field if place < len(turns) else "questions"
        field = "input" if at_fault[1] is None else named
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
    labelled = () if kind == "truths" else zip(labels.ids, options, strict=False)
    lines = [f"{label}. {option}" for label, option in labelled]
    text = joined([question.text, "\n".join(lines), _TASKS[kind]])
    return _Labelled(text, labels.ending, [*labels.ids.values()][: len(options)])


def _of_question(error: RefusalError, questions: Sequence[Asked]) -> RefusalError:
    """`error` with the question in place of the engine's prompt."""
    row = _ROW.fullmatch(error.param or "")
    if row is None:
        return error
    field = questions[int(row[1])].field
    message = error.message.replace(row[0], f"{field} behind the input", 1)
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
    """From natural logarithms of probabilities over the whole vocabulary."""
    logs = values.astype(np.float64)
    best = logs.max()
    each = np.exp(logs - best)
    total = each.sum()
    return Shares((each / total).tolist(), min(float(total * np.exp(best)), 1.0))


def _count(request: Request, model: Model, found: Read, readings: Readings) -> None:
    """Note the job in the request's record and the metrics."""
    service, record, rows = service_of(request), record_of(request), len(readings.shares)
    service.metrics.of_model(model.name).prompt_tokens.add(readings.tokens)
    record.prompt_tokens += readings.tokens
    record.cached_tokens += readings.cached
    record.rows += rows
    record.end_rows("stop", rows)
    if found.timing is not None:
        record.add_timing(found.timing)
        record.encoded_s = time.perf_counter() - record.started
