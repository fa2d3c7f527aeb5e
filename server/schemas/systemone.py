"""`/v1/systemone`: typed questions about one state, in vLLM's form."""

import time
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from server.schemas.chat import TemplateVariables
from server.schemas.common import EncodeRequest


class _OfState(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True
):
    """Fields of questions of every type."""

    instructions: Any = None


class ChoiceOfState(_OfState, frozen=True, kw_only=True, tag="choice"):
    """Which of several options fits the state: descriptions, or null, by their names."""

    criteria: Annotated[dict[str, Any], Meta(min_length=1, max_length=255)]


class NoulCriteria(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The meanings of yes and no."""

    true: Any = None
    false: Any = None


class NoulOfState(_OfState, frozen=True, kw_only=True, tag="noul"):
    """Whether something is true of the state."""

    criteria: NoulCriteria | None = None


class ScoreOfState(_OfState, frozen=True, kw_only=True, tag="score"):
    """Where the state is on a scale, of which these are the levels in order."""

    criteria: Annotated[list[Any], Meta(min_length=2, max_length=10)]


StateQuestion = ChoiceOfState | NoulOfState | ScoreOfState


class SystemOneRequest(EncodeRequest, frozen=True, kw_only=True):
    """A request of `/v1/systemone`."""

    """Example: {"questions": {"refund": {"instructions": "Does the customer want money back?",
    "type": "noul"}, "tone": {"criteria": ["calm", "annoyed", "furious"], "instructions": "How upset
    is the customer?", "type": "score"}}, "state": {"letter": "The parcel came late and the box was
    torn. I want my money back."}}"""

    state: Any
    """What the questions are about: a text, or any JSON, read as compact JSON."""
    questions: Annotated[dict[str, dict[str, Any]], Meta(min_length=1, max_length=400)]
    """1 to 400 by their ids, see [questions](#questions-of-a-state), each of which is read by
    itself behind the state. One that does not fit there: `context_length_exceeded`."""
    instructions: str | None = None
    """A system message before the state."""
    chat_template_kwargs: TemplateVariables | None = None
    """As in [chat](#post-v1chatcompletions); a true `enable_thinking` or `thinking` is refused.
    Default: `{}`."""


class _StateAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Fields of answers of every type."""

    probabilities: dict[str, float]
    """Each option's share beside the others: by its name, `yes` and `no`, or the level's number."""
    confidence: float
    """The probability, over the whole vocabulary, that the model replies with the likeliest."""


class StateChoice(_StateAnswer, frozen=True, kw_only=True, tag="choice"):
    """The answer to a choice."""

    choice: str
    """The name of the likeliest option."""


class StateNoul(_StateAnswer, frozen=True, kw_only=True, tag="noul"):
    """The answer to a question of yes or no."""

    noul: float
    """The share of `yes`."""


class StateScore(_StateAnswer, frozen=True, kw_only=True, tag="score"):
    """The answer to a score."""

    score: float
    """The mean of the levels' numbers, from 0, by their shares."""
    legend: dict[str, str]
    """Each level by its number."""


class StateUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Exact counts of tokens. The state counts once."""

    input_tokens: int
    """Tokens of the state, and of each question with what ends its prompt."""
    output_tokens: int
    """One for each question."""


class QuestionDiagnostics(msgspec.Struct, frozen=True, kw_only=True):
    """The reply that the model would have given to a question."""

    label_mass: float
    """The probability of all labels together over the whole vocabulary."""
    argmax_is_label: bool
    """Whether the likeliest token of all is one of the labels."""


class SystemOneAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/systemone`, in which ids are in the order of the questions."""

    id: str
    """Unique name of the request."""
    object: Literal["structured_decision"] = "structured_decision"
    """Always `structured_decision`."""
    created: int = msgspec.field(default_factory=lambda: int(time.time()))
    """When the request came, in seconds since 1970."""
    model: str
    """The first of the model's names."""
    answers: dict[str, StateChoice | StateNoul | StateScore]
    """An answer for each question, by its id."""
    usage: StateUsage
    """Counts of tokens."""
    diagnostics: dict[str, QuestionDiagnostics]
    """How each question's answer was found, by its id."""
    joint: None = None
    """Always null: questions are read apart."""
