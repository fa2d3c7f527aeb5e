"""Tools in chats: what the template gets, what the engine is told, what is refused by name."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from engine_core.messages import Grammar, ToolRules, TurnRules
from engine_core.turn_format import Reasoning, TurnFormat
from server.generation.requested_tools import MAX_SCHEMAS_CHARS, MAX_TOOLS
from server.turns.known_formats import HERMES
from tests.server.chat_client import HELLO, chat, error, say_little
from tests.server.chat_templates import LLAMA3, chat_deployment
from tests.server.conftest import Deployment
from tests.server.templates.test_turn_formats import HERMES_CALL, JSON, THOUGHTS, template

Fields = dict[str, Any]

WRITES_TOOLS = "{% if tools %}TOOLS {{ tools | tojson }} {% endif %}"
THINKING = "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}"
TEMPLATES = {
    "caller": WRITES_TOOLS + template(HERMES_CALL),
    "thinker": WRITES_TOOLS + template(HERMES_CALL, answer=THOUGHTS, prompt=THINKING),
    "incapable": LLAMA3,
    "wordless": WRITES_TOOLS + template("{{ c.name }} with " + JSON),
}
PROPERTIES = {"city": {"type": "string"}}
SCHEMA = '{"type": "object", "properties": {}}'


def function(name: str, **fields: object) -> Fields:
    return {"name": name, **fields}


def tool(name: str, **fields: object) -> Fields:
    return {"type": "function", "function": function(name, **fields)}


TOOLS: Fields = {"tools": [tool("f"), tool("g")]}


@pytest.fixture(scope="module")
def open_deployment(tokenizer) -> Iterator[Deployment]:
    with chat_deployment(tokenizer, TEMPLATES) as deployment:
        yield deployment


@pytest.fixture
def deployment(open_deployment) -> Deployment:
    return say_little(open_deployment)


def told(deployment: Deployment, model: str, **fields: object) -> TurnRules | None:
    """What the engine is told of the turn."""
    chat(deployment, model=model, **fields)
    return deployment.job(model).params.turn


def rule(name: str, number: int = 0, **changes: Any) -> ToolRules:
    param = f"tools[{number}].function.parameters"
    return ToolRules(
        **{"name": name, "parameters": SCHEMA, "strict": False, "param": param} | changes
    )


BOTH = (rule("f"), rule("g", 1))
FORM = TurnFormat(calls=HERMES.calls)


def rules(**fields: Any) -> TurnRules:
    return TurnRules(**{"form": FORM, "tools": BOTH, "calls": "auto", "parallel": True} | fields)


def named(name: str) -> Fields:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> Fields:
    tools = {"mode": mode, "tools": [named(name) for name in names]}
    return {"type": "allowed_tools", "allowed_tools": tools}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"tools": []}, None),
        ({"tools": None, "functions": [], "tool_choice": "auto", "function_call": "none"}, None),
        (TOOLS, rules()),
        (TOOLS | {"tool_choice": "auto", "parallel_tool_calls": True}, rules()),
        (TOOLS | {"tool_choice": "none"}, rules(calls="none")),
        (TOOLS | {"tool_choice": "required"}, rules(calls="required")),
        (TOOLS | {"parallel_tool_calls": False}, rules(parallel=False)),
        (TOOLS | {"tool_choice": named("g")},
         rules(tools=BOTH[1:], calls="required", parallel=False)),
        (TOOLS | {"tool_choice": allowed("auto", "f")}, rules(tools=BOTH[:1])),
        (TOOLS | {"tool_choice": allowed("required", "g", "f")}, rules(calls="required")),
        ({"tools": [tool("f", strict=True, parameters={"b": 1, "a": {}})]},
         rules(tools=(rule("f", strict=True, parameters='{"b":1,"a":{}}'),))),
        ({"tools": [tool("f", parameters=None), tool("g", parameters={"type": ["object"]})]},
         rules(tools=(BOTH[0], rule("g", 1, parameters='{"type":["object"]}')))),
        ({"functions": [function("f")]},
         rules(tools=(rule("f", param="functions[0].parameters"),), parallel=False)),
        ({"functions": [function("f")], "function_call": {"name": "f"}},
         rules(tools=(rule("f", param="functions[0].parameters"),), calls="required",
               parallel=False)),
        (TOOLS | {"regex": "a+"}, rules(text=Grammar("regex", "a+", "regex"))),
    ],
)  # fmt: skip
def test_the_engine_is_told_what_may_be_called(deployment, fields, expected):
    assert told(deployment, "caller", **fields) == expected


def thinking(**fields: Any) -> TurnRules:
    form = TurnFormat(reasoning=Reasoning(open="<think>", close="</think>"), calls=HERMES.calls)
    return rules(**{"form": form, "tools": (), "calls": "none", "in_reasoning": True} | fields)


WORD = Grammar("choice", '["a"]', "choice")
OFF = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"thinking_token_budget": -1}, None),
        ({"thinking_token_budget": 0}, thinking(reasoning_budget=0)),
        ({"choice": ["a"], "thinking_token_budget": 7}, thinking(text=WORD, reasoning_budget=7)),
        ({"choice": ["a"]} | OFF, thinking(text=WORD, in_reasoning=False)),
        ({"choice": ["a"], "reasoning_effort": "none"}, thinking(text=WORD, in_reasoning=False)),
        ({"choice": ["a"], "reasoning_effort": "low"}, thinking(text=WORD)),
        (TOOLS, thinking(tools=BOTH, calls="auto")),
    ],
)
def test_the_engine_is_told_how_to_reason(deployment, fields, expected):
    assert told(deployment, "thinker", **fields) == expected
    assert deployment.job("thinker").params.grammar is None


def test_a_grammar_without_tools_and_reasoning_is_that_of_the_whole_text(deployment):
    chat(deployment, model="caller", choice=["a"])
    params = deployment.job("caller").params
    assert (params.grammar, params.turn) == (WORD, None)


@pytest.mark.parametrize("choice", ["none", "auto", named("f"), allowed("auto", "f")])
def test_the_template_gets_all_tools_whatever_is_chosen(deployment, choice):
    tools = [
        tool("f", description="Say é.", parameters={"type": "object", "properties": PROPERTIES}),
        tool("g", parameters={"additionalProperties": False}, strict=True),
    ]
    chat(deployment, model="caller", tools=tools, tool_choice=choice)
    (text,) = deployment.job("caller").texts
    assert text.startswith(
        'TOOLS [{"type": "function", "function": {"name": "f", "description": "Say é.", '
        '"parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}, '
        '{"type": "function", "function": {"name": "g", "parameters": '
        '{"type": "object", "properties": {}, "additionalProperties": false}}}] <|user|>'
    )


WIDE = {"enum": ["x" * 60_000]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [tool("f"), {"type": "custom", "custom": {"name": "f"}}]}, "tools[1].type"),
        ({"tools": [tool("f") | {"type": "mcp"}]}, "tools[0].type"),
        ({"tools": [tool("")]}, "tools[0].function.name"),
        ({"tools": [tool("f"), tool("f g")]}, "tools[1].function.name"),
        ({"tools": [tool("f\n")]}, "tools[0].function.name"),
        ({"tools": [tool("f" * 129)]}, "tools[0].function.name"),
        ({"tools": [tool("f"), tool("g"), tool("f")]}, "tools[2].function.name"),
        ({"tools": [tool("f", parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [tool("f", parameters="{}")]}, "tools[0].function.parameters"),
        ({"tools": [tool("f", parameters={"type": "array"})]}, "tools[0].function.parameters.type"),
        ({"tools": [tool("f", parameters={"type": [{}]})]}, "tools[0].function.parameters.type"),
        ({"tools": [tool("f", strict="yes")]}, "tools[0].function.strict"),
        ({"tools": [tool("f", parameters={"a": "x" * 65_536})]}, "tools[0].function.parameters"),
        ({"tools": [tool(f"f{n}", parameters=WIDE) for n in range(9)]}, "tools"),
        ({"tools": [tool(f"f{n}") for n in range(MAX_TOOLS + 1)]}, "tools"),
        (TOOLS | {"tool_choice": "any"}, "tool_choice"),
        (TOOLS | {"tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        (TOOLS | {"tool_choice": named("h")}, "tool_choice.function.name"),
        (TOOLS | {"tool_choice": named("f") | {"allowed_tools": {}}}, "tool_choice.allowed_tools"),
        (TOOLS | {"tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        (TOOLS | {"tool_choice": allowed("none", "f")}, "tool_choice.allowed_tools.mode"),
        (TOOLS | {"tool_choice": allowed("auto", "f", "h")},
         "tool_choice.allowed_tools.tools[1].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": named("f"), "functions": [function("f")]}, "tool_choice"),
        (TOOLS | {"functions": [function("f")]}, "functions"),
        ({"functions": [function("f"), function("f")]}, "functions[1].name"),
        ({"function_call": {"name": "f"}}, "function_call"),
        (TOOLS | {"function_call": {"name": "f"}}, "function_call"),
        ({"functions": [function("f")], "function_call": {"name": "g"}}, "function_call.name"),
        ({"functions": [function("f")], "function_call": "required"}, "function_call"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"thinking_token_budget": -2}, "thinking_token_budget"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
        ({"model": "incapable"} | TOOLS, "tools"),
        ({"model": "incapable", "functions": [function("f")]}, "functions"),
        ({"model": "wordless"} | TOOLS, "tools"),
    ],
)  # fmt: skip
def test_a_tool_or_choice_at_fault_is_named(deployment, fields, param):
    refused = error(deployment, **{"model": "caller"} | fields)
    assert refused["param"] == param
    assert refused["message"].startswith(param)
    assert not any(engine.received for engine in deployment.engines.values())


@pytest.mark.parametrize("number", ["1e999", "9" * 5000])
def test_a_number_beyond_all_floats_is_at_fault(deployment, number):
    """The template gets the schemas of tools as values."""
    body = json.dumps({"model": "caller", "messages": HELLO, "tools": [tool("f", parameters={})]})
    body = body.replace('"parameters": {}', f'"parameters": {{"maximum": {number}}}')
    response = deployment.http.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools[0].function.parameters"


def test_many_large_tools_within_the_bounds_are_taken(deployment):
    width = MAX_SCHEMAS_CHARS // MAX_TOOLS - 40
    tools = [tool(f"f{n}", parameters={"title": "x" * width}) for n in range(MAX_TOOLS)]
    turn = told(deployment, "caller", tools=tools, truncate_prompt_tokens=8)
    assert turn is not None
    assert len(turn.tools) == MAX_TOOLS


def test_a_model_that_cannot_call_tools_says_why(deployment):
    for model, reason in [
        ("incapable", "this model cannot call tools: its chat template leaves out calls of tools"),
        ("wordless", "this model cannot call tools: its calls of tools begin like text"),
    ]:
        assert reason in error(deployment, model=model, **TOOLS)["message"]
        chat(deployment, model=model, messages=HELLO)
