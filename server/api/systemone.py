"""`/v1/systemone`: the questions of `/v1/decisions` in vLLM's form."""

from typing import Any

import msgspec
from fastapi import Request

from engine_core.messages import JobOptions
from server.api.declaration import answers
from server.decisions.questions import TRUTHS, Asked, Input, Shares, check_distinct, line, read
from server.decisions.turns import Turn, written
from server.errors import fault_of, shortened
from server.schemas.common import invalid
from server.schemas.systemone import (
    ChoiceOfState,
    NoulCriteria,
    NoulOfState,
    QuestionDiagnostics,
    ScoreOfState,
    StateChoice,
    StateNoul,
    StateQuestion,
    StateScore,
    StateUsage,
    SystemOneAnswer,
    SystemOneRequest,
)
from server.service.endpoint import Endpoint
from server.service.service import Model, service_of

_THINKING = ("enable_thinking", "thinking")


@answers(Endpoint("POST", "/v1/systemone", "Jina, vLLM", tasks=("generate",), order=26))
async def create_systemone(
    request: Request, body: SystemOneRequest, model: Model
) -> SystemOneAnswer:
    """Answer typed questions about one state, which is read once, by probabilities."""
    options = JobOptions(cache_salt=body.cache_salt or "", priority=body.priority or 0)
    fields = {name: f"questions.{shortened(name)}" for name in body.questions}
    questions = [_question(body.questions[name], field) for name, field in fields.items()]
    asked = [_asked(*each) for each in zip(questions, fields.values(), strict=True)]
    found = await read(request, model, _input(body), asked, options)
    named = dict(zip(body.questions, found.shares, strict=True))
    return SystemOneAnswer(
        id=service_of(request).new_id("decision"),
        model=model.name,
        answers={
            name: _answer(question, shares)
            for question, (name, shares) in zip(questions, named.items(), strict=True)
        },
        usage=StateUsage(input_tokens=found.tokens, output_tokens=len(found.shares)),
        diagnostics={
            name: QuestionDiagnostics(label_mass=each.mass, argmax_is_label=each.has_likeliest)
            for name, each in named.items()
        },
    )


def _input(body: SystemOneRequest) -> Input:
    variables = body.chat_template_kwargs or {}
    for name in _THINKING:
        if variables.get(name):
            reason = "the reply's first token is read, so thinking must be off"
            raise invalid(f"chat_template_kwargs.{name}", reason)
    turns = [Turn("user", "state", [written(body.state, "state")])]
    if body.instructions:
        turns.insert(0, Turn("system", "instructions", [body.instructions]))
    return Input("state", turns, variables)


def _question(given: dict[str, Any], field: str) -> StateQuestion:
    """Raises RefusalError, naming the field."""
    try:
        return msgspec.convert(given, StateQuestion)
    except msgspec.ValidationError as error:
        fault = fault_of(error)
        raise invalid(f"{field}.{fault.path}" if fault.path else field, fault.reason) from None


def _asked(question: StateQuestion, field: str) -> Asked:
    """Raises RefusalError, naming the field: equal levels, JSON that is nested too deeply."""
    if not field.removeprefix("questions."):
        raise invalid("questions", "an id is not empty")
    text = _text(question.instructions, f"{field}.instructions")
    at = f"{field}.criteria"
    match question:
        case ChoiceOfState(criteria=criteria):
            lines = [line(name, _text(criteria[name], at)) for name in criteria]
            return Asked(field, text, "letters", lines, at)
        case NoulOfState(criteria=criteria):
            given = criteria or NoulCriteria()
            lines = [line(name, _text(getattr(given, name), at)) for name in TRUTHS]
            return Asked(field, text, "truths", lines, at)
        case ScoreOfState(criteria=criteria):
            levels = [written(level, at) for level in criteria]
            check_distinct(levels, at)
            return Asked(field, text, "digits", levels, at)


def _text(value: Any, field: str) -> str:
    return "" if value is None else written(value, field)


def _answer(question: StateQuestion, shares: Shares) -> StateChoice | StateNoul | StateScore:
    each, confidence = shares.each, shares.confidence
    match question:
        case ChoiceOfState(criteria=criteria):
            return StateChoice(
                choice=[*criteria][shares.likeliest],
                probabilities=dict(zip(criteria, each, strict=True)),
                confidence=confidence,
            )
        case NoulOfState():
            yes, no = each
            return StateNoul(noul=yes, probabilities={"yes": yes, "no": no}, confidence=confidence)
        case ScoreOfState(criteria=criteria):
            return StateScore(
                score=shares.mean,
                legend={str(value): written(level, "") for value, level in enumerate(criteria)},
                probabilities={str(value): share for value, share in enumerate(each)},
                confidence=confidence,
            )
