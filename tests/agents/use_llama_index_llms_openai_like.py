"""llama-index: a FunctionAgent, which streams, and one that does not, by chat and by responses."""

import asyncio

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai import OpenAIResponses
from llama_index.llms.openai_like import OpenAILike
from scripts import ANSWER, question


def chat(daemon):
    return OpenAILike(
        model=daemon.model, api_base=daemon.v1, api_key=daemon.key, max_retries=0,
        is_chat_model=True, is_function_calling_model=True,
    )  # fmt: skip


def responses(daemon):
    return OpenAIResponses(
        model=daemon.known_model, api_base=daemon.v1, api_key=daemon.key, max_retries=0
    )


@pytest.mark.parametrize("api", [chat, responses])
@pytest.mark.parametrize("streamed", [False, True])
def test_agent(daemon, get_weather, api, streamed):
    async def run():
        agent = FunctionAgent(tools=[get_weather], llm=api(daemon), streaming=streamed)
        return await agent.run(question())

    assert str(asyncio.run(run())) == ANSWER
