"""The turns that the scripted model recites, and the questions that name them.

The frameworks' scripts read them, and so does the test that starts the daemon.
"""

import json

ANSWER = "It will be 18 °C in Zürich."
FORECAST = "Mild"
ARGUMENTS = {"city": "Zürich", "days": 3}


def between(blanks: int) -> str:
    """As many characters between a key and its value. A call's own keys may have four at most."""
    return " " * blanks if blanks < 2 else "\n" + " " * (blanks - 1)


def call(name: str, arguments: object, blanks: int = 1) -> str:
    """A turn of one call."""
    space, line = between(blanks), "\n" * blanks
    written = json.dumps(
        {"name": name, "arguments": arguments},
        ensure_ascii=False, separators=("," + space, ":" + space),
    )  # fmt: skip
    return f"<tool_call>{line}{written}{line}</tool_call>"


def text(value: object, blanks: int) -> str:
    """A turn of JSON."""
    return json.dumps(
        value, ensure_ascii=False, indent=blanks, separators=(",", ":" + between(blanks))
    )


def fields(blanks: int, **values: object) -> str:
    """A turn in dspy's form of text."""
    line = "\n" * blanks
    return "".join(f"{line}[[ ## {name} ## ]]{line}{value}" for name, value in values.items())


def thought(blanks: int, tool: str, arguments: object) -> str:
    """A turn of dspy's ReAct: a tool to call."""
    return fields(
        blanks, next_thought="Well.", next_tool_name=tool, next_tool_args=text(arguments, blanks),
        completed="",
    )  # fmt: skip


# White space tells apart what differs in a word's successor, as the model needs.
SCRIPTS = {
    "call-and-answer": (call("get_weather", ARGUMENTS), ANSWER),
    "answer-by-a-call": (
        call("get_weather", ARGUMENTS),
        call("final_answer", {"answer": FORECAST}, blanks=2),
    ),
    "corrected-call": (
        call("Weather", ARGUMENTS | {"city": "Bern"}, blanks=3),
        call("Weather", ARGUMENTS, blanks=4),
    ),
    "typed-call": (call("Weather", ARGUMENTS, blanks=4),),
    "handoff": (
        call("transfer_to_weather", {}, blanks=0),
        call("get_weather", ARGUMENTS),
        ANSWER,
    ),
    "corrected-text": (text(ARGUMENTS | {"city": "Bern"}, blanks=5), text(ARGUMENTS, blanks=6)),
    "fields": (
        thought(7, "get_weather", ARGUMENTS),
        thought(8, "finish", {}),
        fields(9, reasoning="I looked.", answer=FORECAST, completed=""),
    ),
}


def question(script: str = "call-and-answer") -> str:
    """It has the model recite the script."""
    assert script in SCRIPTS
    return f"How warm will it be in Zürich these 3 days? ({script})"
