"""anthropic: messages with tools, the tool runner, streams, counted tokens, models, batches."""

import time

import anthropic
import pytest
from anthropic import beta_tool
from pydantic import BaseModel
from scripts import ANSWER, ARGUMENTS, question


@pytest.fixture(scope="module")
def client(daemon):
    return anthropic.Anthropic(api_key=daemon.key, base_url=daemon.url)


def described(tools):
    """The tool as this API has it."""
    function = tools[0]["function"]
    return [
        {
            "name": function["name"],
            "description": function["description"],
            "input_schema": function["parameters"],
        }
    ]


def results_of(message, get_weather):
    assert message.stop_reason == "tool_use"
    return [
        {"type": "tool_result", "tool_use_id": block.id, "content": get_weather(**block.input)}
        for block in message.content
        if block.type == "tool_use"
    ]


def test_a_loop_by_hand(client, daemon, get_weather, tools):
    messages = [{"role": "user", "content": question()}]
    asked = {"model": daemon.model, "max_tokens": 500, "tools": described(tools)}
    answer = client.messages.create(messages=messages, tool_choice={"type": "any"}, **asked)
    messages.append({"role": "assistant", "content": answer.content})
    messages.append({"role": "user", "content": results_of(answer, get_weather)})
    answer = client.messages.create(messages=messages, **asked)
    assert answer.content[0].text == ANSWER
    assert answer.stop_reason == "end_turn"
    counted = client.messages.count_tokens(
        model=daemon.model, messages=messages, tools=asked["tools"]
    )
    usage = answer.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_a_streamed_loop(client, daemon, get_weather, tools):
    messages = [{"role": "user", "content": question()}]
    asked = {"model": daemon.model, "max_tokens": 500, "tools": described(tools)}
    with client.messages.stream(messages=messages, **asked) as stream:
        answer = stream.get_final_message()
    messages.append({"role": "assistant", "content": answer.content})
    messages.append({"role": "user", "content": results_of(answer, get_weather)})
    with client.messages.stream(messages=messages, **asked) as stream:
        assert "".join(stream.text_stream) == ANSWER


@pytest.mark.parametrize("stream", [False, True])
def test_the_tool_runner(client, daemon, get_weather, stream):
    """By default it asks for a thread, is told that there are none, and goes on without."""
    tool = beta_tool(get_weather)
    runner = client.beta.messages.tool_runner(
        model=daemon.model, max_tokens=500, tools=[tool], stream=stream,
        messages=[{"role": "user", "content": question()}],
    )  # fmt: skip
    assert runner.until_done().content[0].text == ANSWER


def test_an_answer_of_a_type(client, daemon):
    class Trip(BaseModel):
        city: str
        days: int

    messages = [{"role": "user", "content": question("corrected-text")}]
    answer = client.messages.parse(
        model=daemon.model, max_tokens=500, messages=messages, output_format=Trip
    )
    assert answer.parsed_output == Trip(**ARGUMENTS | {"city": "Bern"})


def test_models_and_errors(client, daemon):
    assert daemon.model in [info.id for info in client.models.list()]
    assert client.models.retrieve(daemon.model).display_name == daemon.model
    for wrong, error in (
        ({"model": "nobody"}, anthropic.NotFoundError),
        ({"max_tokens": -1}, anthropic.BadRequestError),
    ):
        messages = [{"role": "user", "content": "Hello"}]
        asked = {"model": daemon.model, "max_tokens": 5, "messages": messages, **wrong}
        with pytest.raises(error) as refused:
            client.messages.create(**asked)
        assert refused.value.request_id
    nobody = anthropic.Anthropic(api_key="wrong", base_url=daemon.url)
    with pytest.raises(anthropic.AuthenticationError):
        nobody.models.list()


def test_a_batch(client, daemon):
    messages = [{"role": "user", "content": question("corrected-text")}]
    params = {"model": daemon.model, "max_tokens": 500, "messages": messages}
    requests = [
        {"custom_id": "good", "params": params},
        {"custom_id": "bad", "params": params | {"max_tokens": -1}},
    ]
    batch = client.messages.batches.create(requests=requests)
    while batch.processing_status != "ended":
        time.sleep(0.2)
        batch = client.messages.batches.retrieve(batch.id)
    found = {line.custom_id: line.result for line in client.messages.batches.results(batch.id)}
    assert "Bern" in found["good"].message.content[0].text
    assert found["bad"].error.error.type == "invalid_request_error"
    assert batch.id in [each.id for each in client.messages.batches.list()]
    assert client.messages.batches.delete(batch.id).id == batch.id
