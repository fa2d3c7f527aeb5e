"""langchain-anthropic: `ChatAnthropic` by itself, and in langchain's `create_agent`."""

import pytest
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from pydantic import BaseModel
from scripts import ANSWER, ARGUMENTS, question


class Trip(BaseModel):
    """A trip."""

    city: str
    days: int


@pytest.fixture
def model(daemon):
    return ChatAnthropic(
        model=daemon.model, base_url=daemon.url, api_key=daemon.key, max_retries=0, max_tokens=500
    )


@pytest.fixture
def asked():
    return {"messages": [{"role": "user", "content": question()}]}


def test_agent(model, asked, get_weather):
    ended = create_agent(model, tools=[get_weather]).invoke(asked)["messages"]
    assert ended[-1].content == ANSWER
    assert ended[-1].usage_metadata["output_tokens"] > 0


def test_streamed_agent(model, asked, get_weather):
    agent = create_agent(model, tools=[get_weather])
    pieces = [piece for piece, _ in agent.stream(asked, stream_mode="messages")]
    texts = [piece.text for piece in pieces if piece.type == "AIMessageChunk"]
    assert "".join(texts) == ANSWER


def test_an_answer_of_a_type(model):
    typed = model.with_structured_output(Trip, method="json_schema")
    trip = typed.invoke(question("corrected-text"))
    assert trip == Trip(**ARGUMENTS | {"city": "Bern"})


def test_tokens_are_counted(model):
    assert model.get_num_tokens_from_messages([HumanMessage(question())]) > 0
