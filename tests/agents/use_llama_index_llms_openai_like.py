"""llama-index: a FunctionAgent, which streams, and one that does not."""

import asyncio

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike
from scripts import ANSWER, question


@pytest.mark.parametrize("streamed", [False, True])
def test_agent(daemon, get_weather, streamed):
    llm = OpenAILike(
        model=daemon.model, api_base=daemon.v1, api_key=daemon.key, max_retries=0,
        is_chat_model=True, is_function_calling_model=True,
    )  # fmt: skip

    async def run():
        agent = FunctionAgent(tools=[get_weather], llm=llm, streaming=streamed)
        return await agent.run(question())

    assert str(asyncio.run(run())) == ANSWER
