"""dspy: ReAct, which writes calls as text, and calls of tools by the model."""

import dspy
import pytest
from scripts import ARGUMENTS, FORECAST, question


@pytest.fixture(autouse=True)
def model(daemon):
    """A model that is asked anew each time."""
    lm = dspy.LM(
        f"openai/{daemon.known_model}",
        api_base=daemon.v1,
        api_key=daemon.key,
        cache=False,
        num_retries=0,
    )
    with dspy.context(lm=lm):
        yield lm


def test_react(get_weather):
    react = dspy.ReAct("question -> answer", tools=[get_weather])
    assert react(question=question("fields")).answer == FORECAST


class Ask(dspy.Signature):
    question: str = dspy.InputField()
    tools: list[dspy.Tool] = dspy.InputField()
    calls: dspy.ToolCalls = dspy.OutputField()


def test_native_calls(model, get_weather):
    adapter = dspy.ChatAdapter(use_native_function_calling=True)
    with dspy.context(adapter=adapter):
        asked = dspy.Predict(Ask)(question=question(), tools=[dspy.Tool(get_weather)])
    (call,) = asked.calls.tool_calls
    assert (call.name, call.args) == ("get_weather", ARGUMENTS)
    get_weather(**call.args)
