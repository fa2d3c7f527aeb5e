"""pydantic-ai: an agent, whole and streamed."""

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from scripts import ANSWER, question


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel])
def agent(request, daemon, get_weather):
    provider = OpenAIProvider(base_url=daemon.v1, api_key=daemon.key)
    return Agent(request.param(daemon.model, provider=provider), tools=[get_weather])


def test_agent(agent):
    assert agent.run_sync(question()).output == ANSWER


def test_streamed_agent(agent):
    result = agent.run_stream_sync(question())
    assert list(result.stream_text())[-1] == ANSWER
