"""The turns that the scripted model recites, and the questions that name them.

The frameworks' scripts read them, and so does the test that starts the daemon.
"""

import json

ANSWER = "It will be 18 °C in Zürich."
FORECAST = "18 °C"
ARGUMENTS = {"city": "Zürich", "days": 3}


def call(name: str, **arguments: object) -> str:
    """A turn of one call."""
    written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


def fields(**values: object) -> str:
    """A turn in dspy's form of text."""
    return "\n\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in values.items())


def thought(tool: str, **arguments: object) -> str:
    """A turn of dspy's ReAct: a tool to call."""
    written = json.dumps(arguments, ensure_ascii=False)
    return fields(next_thought="I look.", next_tool_name=tool, next_tool_args=written, completed="")


SCRIPTS = {
    "call-and-answer": (call("get_weather", **ARGUMENTS), ANSWER),
    "answer-by-a-call": (call("get_weather", **ARGUMENTS), call("final_answer", answer=ANSWER)),
    "corrected-call": (call("Weather", city="Bern", days=3), call("Weather", **ARGUMENTS)),
    "corrected-text": (json.dumps(ARGUMENTS | {"city": "Bern"}), json.dumps(ARGUMENTS)),
    "fields": (
        thought("get_weather", **ARGUMENTS),
        thought("finish"),
        fields(reasoning="I have looked.", answer=ANSWER, completed=""),
    ),
}


def question(script: str = "call-and-answer") -> str:
    """It has the model recite the script."""
    assert script in SCRIPTS
    return f"How warm will it be in Zürich these 3 days? ({script})"
