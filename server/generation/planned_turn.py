"""The turn of a chat's answer: what it may hold, and how it is read."""

import msgspec

from engine_core.messages import TurnRules
from engine_core.turn_format import TurnFormat
from server.generation.plan import GenerationPlan, TurnReading
from server.generation.requested_tools import RequestedTools
from server.schemas.common import invalid

# Characters at the end of a prompt that show whether it ends inside reasoning.
_END_CHARS = 256


def with_turn(
    plan: GenerationPlan,
    form: TurnFormat | None,
    prompt: str,
    tools: RequestedTools | None,
    budget: int | None,
) -> GenerationPlan:
    """The plan for a turn of this form behind a prompt. It has rules for the engine only if the
    request asks for some. Raises RefusalError for a budget without reasoning."""
    reasoning = form and form.reasoning
    if budget is not None and reasoning is None:
        raise invalid("thinking_token_budget", "this model's chat template shows no reasoning")
    if form is None or not (tools or reasoning):
        return plan
    end = prompt[-_END_CHARS:]
    reading = TurnReading(form=form, tools=tools.schemas if tools else {}, prompt_end=end)
    plan = msgspec.structs.replace(plan, turn=reading)
    text = plan.params.grammar
    if tools is None and text is None and budget is None:
        return plan
    rules = TurnRules(
        form=form,
        tools=tools.rules if tools else (),
        calls=tools.calls if tools else "none",
        parallel=tools is None or tools.parallel,
        in_reasoning=reasoning is not None and reasoning.is_open_at_end_of(end),
        reasoning_budget=budget,
        text=text,
    )
    params = msgspec.structs.replace(plan.params, grammar=None, turn=rules)
    return msgspec.structs.replace(plan, params=params)
