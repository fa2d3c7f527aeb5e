"""`/v1/decisions`: typed questions about one input."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from server.schemas.common import EncodeRequest

JsonData = dict[str, Any] | list[dict[str, Any]]


# `gc=False`: what comes from JSON has no cycles, and an input may have very many of these.
class TextPart(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A part of a tool's output."""

    type: str
    """`input_text` of outputs and of messages but an assistant's, also `input_json` of a user's
    message and of instructions; `output_text` or `refusal` of an assistant's message. Images are
    [refused](#known-not-served)."""
    text: str | None = None
    """The text of a part of type `input_text` or `output_text`."""
    prompt_cache_breakpoint: dict[str, Any] | None = None
    """Ignored: prefixes are cached without it."""


class QuestionPart(TextPart, frozen=True, kw_only=True, gc=False):
    """A part of a question's instructions."""

    data: JsonData | None = None
    """The object, or list of objects, of a part of type `input_json`, read as compact JSON: at most
    32 levels, 10,000 values and 256 KiB."""


class MessagePart(QuestionPart, frozen=True, kw_only=True, gc=False):
    """A part of a message's content."""

    refusal: str | None = None
    """The text of a part of type `refusal`."""


class InputItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message, a tool call or a tool's output."""

    type: (
        Literal[
            "message",
            "function_call",
            "function_call_output",
            "custom_tool_call",
            "custom_tool_call_output",
        ]
        | None
    ) = None
    """The kind of item. Default: `message`."""
    role: Literal["user", "developer", "system", "assistant"] | None = None
    """Required for a message."""
    content: str | list[MessagePart] | None = None
    """Required for a message: a text or [parts](#input-inputitem), one on a line."""
    call_id: str | None = None
    """Required for calls and outputs: an output has that of a call of its kind."""
    name: str | None = None
    """Required for calls: the tool's name."""
    arguments: str | None = None
    """Required for a `function_call`: its arguments as text."""
    input: str | None = None
    """Required for a `custom_tool_call`: its input."""
    output: str | list[TextPart] | None = None
    """Required for outputs: a text or parts."""
    phase: Literal["commentary", "final_answer"] | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    id: str | None = None
    namespace: str | None = None
    """Ignored."""


class ChoiceOption(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One of a question's options."""

    value: str | bool
    """Differs from the others' values: `true` and `"true"` do differ."""
    description: str | None = None
    """What it means, for the model to read."""


class ScoreLevel(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One of a question's levels."""

    label: str
    """The level's name, for the model to read."""
    description: str | None = None
    """What it means, for the model to read."""


class _AnyQuestion(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Fields of questions of every type."""

    instructions: str | list[QuestionPart]
    """The statement or question: a text or [parts](#input-inputitem), one on a line."""
    name: str | None = None
    """The answer's `name`. The model does not read it."""


class PredicateQuestion(_AnyQuestion, frozen=True, kw_only=True, tag="predicate"):
    """How likely a statement about the input is true."""


class ChoiceQuestion(_AnyQuestion, frozen=True, kw_only=True, tag="choice"):
    """Which of several options fits the input."""

    choices: Annotated[list[ChoiceOption], Meta(min_length=2, max_length=255)]
    """2 to 255 options; more than the model has [labels](decisions.md#labels) for: 400."""


class ScoreQuestion(_AnyQuestion, frozen=True, kw_only=True, tag="score"):
    """Where the input is on a scale."""

    levels: Annotated[list[ScoreLevel], Meta(min_length=2, max_length=10)]
    """2 to 10 levels, from the lowest."""


Question = PredicateQuestion | ChoiceQuestion | ScoreQuestion


class DecisionRequest(EncodeRequest, frozen=True, kw_only=True):
    """A request of `/v1/decisions`."""

    """Example: {"input": "The parcel came late and the box was torn. I want my money back.",
    "questions": [{"instructions": "The customer asks for a refund.", "name": "refund", "type":
    "predicate"}, {"choices": [{"value": "billing"}, {"description": "where a parcel is, or how it
    came", "value": "delivery"}], "instructions": "Which team answers this?", "type":
    "choice"}]}"""
    """Example: {"input": [{"content": "How was it?", "role": "assistant"}, {"content": [{"text":
    "Quite good.", "type": "input_text"}], "role": "user"}], "model": "penstock-demo", "questions":
    [{"instructions": "How content is the guest?", "levels": [{"label": "not at all"}, {"label":
    "somewhat"}, {"label": "very"}], "type": "score"}]}"""

    input: str | list[InputItem]
    """What the questions are about: a text, or messages, tool calls and their outputs, see
    [input](#input-inputitem). It may be empty."""
    questions: Annotated[list[Question], Meta(min_length=1, max_length=400)]
    """1 to 400, see [questions](#questions), each of which is read by itself behind the input. One
    that does not fit there: `context_length_exceeded`."""
    prompt_cache_key: str | None = None
    """Another name of `cache_salt`; refused if both are given and differ."""
    prompt_cache_options: dict[str, Any] | None = None
    safety_identifier: str | None = None
    """No effect."""


class _AnyAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Fields of answers to questions of every type."""

    name: str | None
    """The question's, or null."""


class PredicateAnswer(_AnyAnswer, frozen=True, kw_only=True, tag="predicate"):
    """The answer to a predicate."""

    probability: float
    """That the statement is true: the share of `true` beside `false`."""


class OptionProbability(msgspec.Struct, frozen=True, kw_only=True):
    """An option's share."""

    value: str | bool
    """The option's value, or the level's number, from 0."""
    probability: float
    """Its share beside the others."""


class ChoiceAnswer(_AnyAnswer, frozen=True, kw_only=True, tag="choice"):
    """The answer to a choice."""

    choice: str | bool
    """The value of the likeliest option."""
    confidence: float
    """The probability, over the whole vocabulary, that the model replies with the likeliest."""
    probabilities: list[OptionProbability]
    """The share of each option or level, in their order."""


class LevelProbability(msgspec.Struct, frozen=True, kw_only=True):
    """A level's share."""

    label: str
    """The level's name."""
    value: int
    """The option's value, or the level's number, from 0."""
    probability: float
    """Its share beside the others."""


class ScoreAnswer(_AnyAnswer, frozen=True, kw_only=True, tag="score"):
    """The answer to a score."""

    score: float
    """The mean of the levels' numbers by their shares."""
    confidence: float
    """The probability, over the whole vocabulary, that the model replies with the likeliest."""
    probabilities: list[LevelProbability]
    """The share of each option or level, in their order."""


DecisionAnswer = PredicateAnswer | ChoiceAnswer | ScoreAnswer


class InputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Details of the tokens that were read."""

    cached_tokens: int
    """Tokens of the input that were in the prefix cache already."""
    cache_write_tokens: int
    """Tokens of the input that were not, and are now."""


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Details of the tokens that were answered."""

    reasoning_tokens: int = 0
    """Always 0."""


class DecisionUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Exact counts of tokens. The input counts once."""

    input_tokens: int
    """Tokens of the input, and of each question with what ends its prompt."""
    input_tokens_details: InputTokensDetails
    """More about the tokens that were read."""
    output_tokens: int
    """One for each question."""
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    """More about the tokens that were answered."""
    total_tokens: int
    """The sum of both."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/decisions`."""

    answers: list[DecisionAnswer]
    """An answer for each question, in their order."""
    model: str
    """The first of the model's names."""
    usage: DecisionUsage
    """Counts of tokens."""
