"""openai-agents: an agent with a tool, and one that hands over to it, by the Responses API."""

import asyncio

import pytest
from agents import (
    Agent,
    Runner,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from scripts import ANSWER, question


@pytest.fixture(autouse=True)
def client(daemon):
    """One for each test: its connections are of one event loop."""
    set_tracing_disabled(disabled=True)
    client = AsyncOpenAI(base_url=daemon.v1, api_key=daemon.key, max_retries=0)
    set_default_openai_client(client, use_for_tracing=False)


@pytest.fixture
def agent(daemon, get_weather):
    return Agent("Weather", model=daemon.model, tools=[function_tool(get_weather)])


def test_agent(agent):
    result = asyncio.run(Runner.run(agent, question()))
    assert result.final_output == ANSWER


def test_an_agent_whose_conversation_the_server_has(agent):
    run = Runner.run(agent, question(), auto_previous_response_id=True)
    result = asyncio.run(run)
    assert (result.final_output, len(result.raw_responses)) == (ANSWER, 2)


async def streamed(agent):
    result = Runner.run_streamed(agent, question())
    events = [event async for event in result.stream_events()]
    deltas = [event.data.delta for event in events
              if event.type == "raw_response_event"
              and event.data.type == "response.output_text.delta"]  # fmt: skip
    return result.final_output, "".join(deltas)


def test_streamed_agent(agent):
    assert asyncio.run(streamed(agent)) == (ANSWER, ANSWER)


def test_an_agent_that_hands_over(agent, daemon):
    desk = Agent("Desk", model=daemon.model, handoffs=[agent])
    result = asyncio.run(Runner.run(desk, question("handoff")))
    assert (result.final_output, result.last_agent) == (ANSWER, agent)
