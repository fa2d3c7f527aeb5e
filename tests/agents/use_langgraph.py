"""langgraph: langchain's `create_agent`, with langchain-openai."""

import pytest
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from scripts import ANSWER, question


@pytest.fixture
def agent(daemon, get_weather):
    model = ChatOpenAI(model=daemon.model, base_url=daemon.v1, api_key=daemon.key, max_retries=0)
    return create_agent(model, tools=[get_weather])


@pytest.fixture
def asked():
    return {"messages": [{"role": "user", "content": question()}]}


def test_agent(agent, asked):
    assert agent.invoke(asked)["messages"][-1].content == ANSWER


def test_streamed_agent(agent, asked):
    pieces = [piece for piece, _ in agent.stream(asked, stream_mode="messages")]
    texts = [piece.content for piece in pieces if piece.type == "AIMessageChunk"]
    assert "".join(texts) == ANSWER
