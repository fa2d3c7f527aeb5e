"""Where a reply begins behind a question, by templates in the manners of published ones."""

from typing import Any

import pytest

from server.templates.loaded_template import LeftOutError, LoadedTemplate
from server.templates.protocol import ChatTemplate, Conversation

USER = "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content | trim }}<|end|>"
ELSE = "{% else %}<|assistant|>"
END = "{% endif %}{% endfor %}{% if add_generation_prompt %}"


def template(written: str, begun: str) -> str:
    """One that writes an assistant's message, and the beginning of a reply."""
    return f"{USER}{ELSE}{written}<|end|>{END}{begun}{{% endif %}}"


CONTENT = "{{ m.content }}"
WITHOUT_THOUGHTS = "{{ m.content.split('</think>')[-1].lstrip() }}"
THOUGHTS = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
EMPTY_THOUGHTS = "<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{{ m.content }}"
FINAL = "<|channel|>final<|message|>{{ m.content }}"
SWITCH = "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"


def rendered(source: str, *contents: str, **fields: Any) -> str:
    roles = ["user", "assistant"]
    messages = [
        {"role": roles[place % 2], "content": content} for place, content in enumerate(contents)
    ]
    loaded = LoadedTemplate(ChatTemplate(source=source, file="here", tokens={}))
    return loaded.prompt(Conversation(messages=messages, question="zqquestionvx", **fields))


@pytest.mark.parametrize(
    ("source", "place"),
    [
        pytest.param(template(CONTENT, "<|assistant|>"), "", id="at once"),
        pytest.param(template(" " + CONTENT, "<|assistant|>"), " ", id="behind a space"),
        pytest.param(template(FINAL, "<|assistant|>"), "<|channel|>final<|message|>", id="header"),
        pytest.param(
            template(EMPTY_THOUGHTS, "<|assistant|><think>\n"),
            "<think>\n\n</think>\n\n",
            id="opened, and written with each reply",
        ),
        pytest.param(
            template(THOUGHTS + CONTENT, "<|assistant|><think>\n"),
            "<think>\n\n</think>\n\n",
            id="opened, and written if there is any",
        ),
        pytest.param(
            template(WITHOUT_THOUGHTS, "<|assistant|><think>"),
            "<think>\n</think>\n\n",
            id="opened, and its end is only known",
        ),
        pytest.param(
            template(CONTENT, "<|assistant|>" + SWITCH),
            "<think>\n\n</think>\n\n",
            id="closed by a switch",
        ),
        pytest.param(template(CONTENT, "<|assistant|>Well, "), "Well, ", id="begun in another way"),
        pytest.param(template("{{ raise_exception('no') }}", "<|assistant|>"), "", id="no replies"),
        pytest.param(template("", "<|assistant|>"), "", id="replies are left out"),
    ],
)
def test_where_a_reply_begins(source, place):
    switch = {"enable_thinking": False}
    prompt = rendered(source, "a\n\nzqquestionvx", variables=switch)
    assert prompt == f"<|user|>a\n\nzqquestionvx<|end|><|assistant|>{place}"


def test_the_input_is_written_as_without_a_reply():
    """This template shows a system's text with the last message alone."""
    source = (
        "{% for m in messages %}{{ '(' if loop.last else '[' }}{{ m.content }})"
        "{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    assert rendered(source, "a", "b", "zqquestionvx") == "[a)[b)(zqquestionvx)>"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (template(CONTENT, "<|assistant|><think>"), "the end of the reasoning .* with <think>"),
        (
            template(CONTENT, "<|assistant|>[THINK]\n"),
            r"the end of the reasoning .* with \[THINK\]",
        ),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "the text of a question"),
        ("{% for m in messages %}{{ m.content * 2 }}{% endfor %}", "the text of a question"),
    ],
)
def test_a_template_without_a_place_is_refused(source, reason):
    with pytest.raises(LeftOutError, match=reason) as caught:
        rendered(source, "zqquestionvx")
    assert caught.value.field == "model"
