"""haystack: an Agent, whole and streamed."""

import pytest
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from scripts import ANSWER, question


@pytest.mark.parametrize("streamed", [False, True])
def test_agent(daemon, get_weather, streamed):
    pieces = []
    generator = OpenAIChatGenerator(
        model=daemon.model, api_base_url=daemon.v1, api_key=Secret.from_token(daemon.key),
        streaming_callback=pieces.append if streamed else None,
    )  # fmt: skip
    agent = Agent(chat_generator=generator, tools=[create_tool_from_function(get_weather)])
    result = agent.run(messages=[ChatMessage.from_user(question())])
    assert result["messages"][-1].text == ANSWER
    assert "".join(piece.content for piece in pieces) == (ANSWER if streamed else "")
