"""llama-index-llms-openai-like: llama-index's `OpenAI` for models of any name."""

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike


@pytest.fixture(scope="module", params=[False, True])
def llm(request, daemon):
    return OpenAILike(
        model=daemon.generator, is_chat_model=request.param, max_tokens=8, temperature=0,
        context_window=1024, api_base=f"{daemon.url}/v1", api_key=daemon.key, max_retries=0,
    )  # fmt: skip


def test_complete(llm):
    text = llm.complete("The function returns").text
    assert text
    assert [piece.text for piece in llm.stream_complete("The function returns")][-1] == text


def test_chat(llm):
    messages = [ChatMessage(role="user", content="What is a file?")]
    text = llm.chat(messages).message.content
    assert text
    assert [piece.message.content for piece in llm.stream_chat(messages)][-1] == text
