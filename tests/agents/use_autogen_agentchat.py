"""autogen: an AssistantAgent that answers from its tool's result."""

import asyncio

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from scripts import ANSWER, question

ABLE = {
    "vision": False, "function_calling": True, "json_output": True, "family": "unknown",
    "structured_output": True, "multiple_system_messages": True,
}  # fmt: skip


@pytest.mark.parametrize("streamed", [False, True])
def test_agent(daemon, get_weather, streamed):
    async def run():
        client = OpenAIChatCompletionClient(
            model=daemon.model, base_url=daemon.v1, api_key=daemon.key, model_info=ABLE,
        )  # fmt: skip
        agent = AssistantAgent(
            "assistant", client, tools=[get_weather], reflect_on_tool_use=True,
            model_client_stream=streamed,
        )  # fmt: skip
        result = await agent.run(task=question())
        await client.close()
        return result.messages[-1].content

    assert asyncio.run(run()) == ANSWER
