"""llama-index-llms-openai, which knows only the names of OpenAI's models."""

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai import OpenAI


@pytest.fixture(autouse=True)
def environment(daemon, monkeypatch):
    monkeypatch.setenv("OPENAI_API_BASE", f"{daemon.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", daemon.key)


def test_another_name_is_not_sent(daemon):
    with pytest.raises(ValueError, match="Unknown model"):
        OpenAI(model=daemon.generator).complete("The function returns")


def test_quick_start():
    """The documentation's programs as they are: the environment says where."""
    assert OpenAI(model="gpt-4o-mini").complete("Paul Graham is ").text is not None
    messages = [
        ChatMessage(role="system", content="You are a pirate with a colorful personality"),
        ChatMessage(role="user", content="What is your name"),
    ]
    assert OpenAI(model="gpt-4o-mini").chat(messages).message.role == "assistant"
