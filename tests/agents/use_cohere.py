"""cohere: chat of ClientV2 with tools, in the words of its guide."""

import json

import cohere
import pytest
from scripts import ANSWER, question


@pytest.fixture(scope="module")
def client(daemon):
    return cohere.ClientV2(api_key=daemon.key, base_url=daemon.url)


def test_chat(client, daemon, get_weather, tools):
    messages = [{"role": "user", "content": question()}]
    answer = client.chat(model=daemon.model, messages=messages, tools=tools)
    assert answer.finish_reason == "TOOL_CALL"
    messages.append(answer.message)
    for call in answer.message.tool_calls:
        result = get_weather(**json.loads(call.function.arguments))
        part = {"type": "document", "document": {"data": json.dumps(result)}}
        messages.append({"role": "tool", "tool_call_id": call.id, "content": [part]})
    answer = client.chat(model=daemon.model, messages=messages, tools=tools)
    assert answer.message.content[0].text == ANSWER
