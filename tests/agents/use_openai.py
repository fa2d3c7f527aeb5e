"""openai: chat and responses, the helpers for streams, and what is parsed."""

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


def created_response(client, **request):
    return client.responses.create(**request)


def streamed_response(client, **request):
    with client.responses.stream(**request) as events:
        return events.get_final_response()


def parsed_response(client, tools, **request):
    tools = [openai.pydantic_function_tool(GetWeather, name="get_weather")]
    return client.responses.parse(tools=flat(tools), **request)


def flat(tools):
    """The tools as the Responses API has them."""
    return [{"type": "function", **tool["function"]} for tool in tools]


def results_of(response, get_weather):
    """The output of its call."""
    (call,) = (item for item in response.output if item.type == "function_call")
    result = get_weather(**json.loads(call.arguments))
    return {"type": "function_call_output", "call_id": call.call_id, "output": result}


@pytest.mark.parametrize("way", [created_response, streamed_response, parsed_response])
@pytest.mark.parametrize("is_stored", [False, True])
def test_a_loop_of_responses(client, daemon, get_weather, tools, way, is_stored):
    """The items go back, or the server has them."""
    asked = {"model": daemon.model, "tools": flat(tools), "store": is_stored}
    items = [{"role": "user", "content": question()}]
    first = way(client, input=items, **asked)
    result = results_of(first, get_weather)
    if is_stored:
        second = way(client, input=[result], previous_response_id=first.id, **asked)
        assert client.responses.retrieve(second.id).output_text == ANSWER
        assert [item.type for item in client.responses.input_items.list(second.id)] == [
            "function_call_output"
        ]
        client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(first.id)
    else:
        second = way(client, input=[*items, *first.output, result], **asked)
    assert (second.output_text, second.status) == (ANSWER, "completed")


def last_response(connection, **request):
    """The response to a message."""
    connection.send({"type": "response.create", **request})
    for event in connection:
        if event.type == "response.completed":
            return event.response
    pytest.fail("the connection has ended")


def test_a_loop_by_websocket(client, daemon, get_weather, tools):
    """Its last response is continued, though it is not stored."""
    asked = {"model": daemon.model, "tools": flat(tools), "store": False}
    with client.responses.connect() as connection:
        first = last_response(connection, input=question(), **asked)
        result = results_of(first, get_weather)
        second = last_response(connection, input=[result], previous_response_id=first.id, **asked)
        assert second.output_text == ANSWER


def test_a_response_of_a_type(client, daemon):
    response = client.responses.parse(
        model=daemon.model, input=question("corrected-text"), text_format=GetWeather
    )
    assert response.output_parsed == GetWeather(**ARGUMENTS | {"city": "Bern"})


def test_the_tokens_of_a_response(client, daemon):
    counted = client.responses.input_tokens.count(model=daemon.model, input=question())
    asked = {"model": daemon.model, "max_output_tokens": 1, "input": question()}
    answered = client.responses.create(**asked)
    assert counted.input_tokens == answered.usage.input_tokens
    assert answered.incomplete_details.reason == "max_output_tokens"
