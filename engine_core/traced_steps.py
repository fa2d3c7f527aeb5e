"""The times of steps, for clients that trace an engine."""

import msgspec

from workers.contract.messages import StepTimes

MAX_TRACE_SECONDS = 60.0


class Trace(msgspec.Struct, array_like=True, frozen=True, tag="trace"):
    """Send the times of all steps that end in the next `seconds`, at most MAX_TRACE_SECONDS. The
    answer is a `TracedSteps` a second."""

    seconds: float


class TracedStep(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """A step that every stage has done, in these `times` by stage.

    `prompt_tokens` of its tokens are not those of decode rows; `context_tokens` is the sum of its
    rows' lengths up to then. `continued`: there was a job ever since the step before was submitted.
    """

    step: int
    rows: int
    tokens: int
    prompt_tokens: int
    context_tokens: int
    continued: bool
    times: list[StepTimes]


class TracedSteps(msgspec.Struct, array_like=True, frozen=True, tag="traced"):
    """Steps since the last such message; `over` if there are no more to come."""

    steps: list[TracedStep]
    over: bool
