"""`/v1/decisions`: typed questions about one input, answered by probabilities."""

from fastapi import Request

from engine_core.messages import JobOptions
from server.api.declaration import answers
from server.decisions.questions import (
    TRUTHS,
    Asked,
    Input,
    Readings,
    Shares,
    check_distinct,
    line,
    read,
)
from server.decisions.turns import USER_PARTS, text_of, turns_of
from server.schemas.common import value_under_any_name
from server.schemas.decisions import (
    ChoiceAnswer,
    ChoiceQuestion,
    Decision,
    DecisionAnswer,
    DecisionRequest,
    DecisionUsage,
    InputTokensDetails,
    LevelProbability,
    OptionProbability,
    PredicateAnswer,
    PredicateQuestion,
    Question,
    ScoreAnswer,
    ScoreQuestion,
)
from server.service.endpoint import Endpoint
from server.service.service import Model


@answers(Endpoint("POST", "/v1/decisions", "OpenAI", tasks=("generate",), order=25))
async def create_decision(request: Request, body: DecisionRequest, model: Model) -> Decision:
    """Answer typed questions about one input, which is read once, by probabilities."""
    salts = [(name, getattr(body, name)) for name in ("cache_salt", "prompt_cache_key")]
    options = JobOptions(cache_salt=value_under_any_name(*salts) or "", priority=body.priority or 0)
    questions = [
        await _asked(question, f"questions[{place}]")
        for place, question in enumerate(body.questions)
    ]
    given = Input("input", await turns_of(body.input), {})
    found = await read(request, model, given, questions, options)
    return Decision(
        answers=[_answer(*each) for each in zip(body.questions, found.shares, strict=True)],
        model=model.name,
        usage=_usage(found),
    )


async def _asked(question: Question, field: str) -> Asked:
    """Raises RefusalError, naming the field: parts that are not served, equal values."""
    text = await text_of(question.instructions, f"{field}.instructions", USER_PARTS)
    match question:
        case PredicateQuestion():
            return Asked(field, text, "truths", TRUTHS, field)
        case ChoiceQuestion(choices=choices):
            field_of_choices = f"{field}.choices"
            check_distinct([each.value for each in choices], field_of_choices, ".value")
            lines = [line(_written(each.value), each.description) for each in choices]
            return Asked(field, text, "letters", lines, field_of_choices)
        case ScoreQuestion(levels=levels):
            lines = [line(each.label, each.description) for each in levels]
            return Asked(field, text, "digits", lines, f"{field}.levels")


def _written(value: str | bool) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _answer(question: Question, shares: Shares) -> DecisionAnswer:
    each, name = shares.each, question.name
    match question:
        case PredicateQuestion():
            return PredicateAnswer(name=name, probability=each[0])
        case ChoiceQuestion(choices=choices):
            values = [choice.value for choice in choices]
            pairs = zip(values, each, strict=True)
            return ChoiceAnswer(
                name=name,
                choice=values[shares.likeliest],
                confidence=shares.confidence,
                probabilities=[OptionProbability(value=v, probability=p) for v, p in pairs],
            )
        case ScoreQuestion(levels=levels):
            return ScoreAnswer(
                name=name,
                score=shares.mean,
                confidence=shares.confidence,
                probabilities=[
                    LevelProbability(label=level.label, value=value, probability=share)
                    for value, (level, share) in enumerate(zip(levels, each, strict=True))
                ],
            )


def _usage(found: Readings) -> DecisionUsage:
    replies = len(found.shares)
    return DecisionUsage(
        input_tokens=found.tokens,
        input_tokens_details=InputTokensDetails(
            cached_tokens=found.cached, cache_write_tokens=found.uncached
        ),
        output_tokens=replies,
        total_tokens=found.tokens + replies,
    )
