"""openai: chat, the helper for streams, and calls that are parsed."""

import json

import openai
import pytest
from pydantic import BaseModel
from scripts import ANSWER, ARGUMENTS, question


class GetWeather(BaseModel):
    city: str
    days: int


@pytest.fixture(scope="module")
def client(daemon):
    with openai.OpenAI(base_url=daemon.v1, api_key=daemon.key, max_retries=0) as client:
        yield client


def create(client, **request):
    return client.chat.completions.create(**request).choices[0]


def stream(client, **request):
    with client.chat.completions.stream(**request) as events:
        return events.get_final_completion().choices[0]


def parse(client, tools, **request):
    tools = [openai.pydantic_function_tool(GetWeather, name="get_weather")]
    return client.chat.completions.parse(tools=tools, **request).choices[0]


def run_loop(get_weather, ask):
    """Ask until there is an answer, and return it."""
    messages = [{"role": "user", "content": question()}]
    while True:
        choice = ask(messages=messages)
        calls = choice.message.tool_calls or []
        assert choice.finish_reason == ("tool_calls" if calls else "stop")
        if not calls:
            return choice.message.content
        assert choice.message.content is None
        messages.append(choice.message)
        for call in calls:
            result = get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


@pytest.mark.parametrize("way", [create, stream, parse])
def test_loop(client, daemon, get_weather, tools, way):
    def ask(**request):
        return way(client, model=daemon.model, tools=tools, **request)

    assert run_loop(get_weather, ask) == ANSWER


def test_a_parsed_call(client, daemon):
    choice = parse(
        client, [], model=daemon.model, messages=[{"role": "user", "content": question()}]
    )
    (call,) = choice.message.tool_calls
    assert call.function.parsed_arguments == GetWeather(**ARGUMENTS)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_a_call_that_is_required(client, daemon, tools, choice):
    messages = [{"role": "user", "content": question()}]
    answered = create(
        client, model=daemon.model, messages=messages, tools=tools, tool_choice=choice
    )
    (call,) = answered.message.tool_calls
    assert json.loads(call.function.arguments) == ARGUMENTS


def test_pieces_of_a_stream(client, daemon, tools):
    """The id and name come first, then the arguments."""
    pieces = client.chat.completions.create(
        model=daemon.model, tools=tools, stream=True,
        messages=[{"role": "user", "content": question()}],
    )  # fmt: skip
    choices = [piece.choices[0] for piece in pieces]
    first, *others = (call for choice in choices for call in choice.delta.tool_calls or [])
    assert (first.index, first.type, first.function.name) == (0, "function", "get_weather")
    assert first.id
    assert all((call.index, call.id, call.function.name) == (0, None, None) for call in others)
    arguments = "".join(call.function.arguments or "" for call in (first, *others))
    assert json.loads(arguments) == ARGUMENTS
    assert choices[-1].finish_reason == "tool_calls"
