"""Prompts against those of transformers, templates against the limits of their process."""

import asyncio
from functools import partial

import pytest
from transformers import PreTrainedTokenizerFast

from engine_core.refusal import RefusalError
from server.templates.loaded_template import LoadedTemplate
from server.templates.protocol import ChatTemplate, Conversation
from server.templates.template_client import TemplateClient
from server.templates.template_files import NoChatTemplateError, read_chat_template
from tests.server.chat_templates import CHATML, ENDLESS, LLAMA3, MISTRAL, write_template
from tests.server.templates.test_template_process import SLOW, ask, started

USER = {"role": "user", "content": " What falls <b>from</b> the gate? "}
SYSTEM = {"role": "system", "content": "Say little."}
ANSWER = {"role": "assistant", "content": "  Water, naïve 漢字 🎉.  "}
CALLS = {
    "role": "assistant",
    "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"é": [1, "<"]}}}],
}
TALKS = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "several": [SYSTEM, USER, ANSWER, {"role": "user", "content": "And then?"}],
    "ends with an answer": [USER, ANSWER],
}


@pytest.fixture(scope="module")
def reference(folder):
    """What transformers writes."""
    file = str(folder / "tokenizer.json")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=file, bos_token="<s>", eos_token="</s>")
    return partial(tokenizer.apply_chat_template, tokenize=False)


def prompt(source: str, messages: list, **fields) -> str:
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    template = ChatTemplate(source=source, file="here", tokens=tokens)
    return LoadedTemplate(template).render(Conversation(messages=messages, **fields))


PUBLISHED = pytest.mark.parametrize("source", [CHATML, LLAMA3, MISTRAL], ids=["ml", "llama", "mis"])


@PUBLISHED
@pytest.mark.parametrize("messages", TALKS.values(), ids=TALKS.keys())
@pytest.mark.parametrize("generates", [True, False])
def test_prompts_are_those_of_transformers(reference, source, messages, generates):
    expected = reference(messages, chat_template=source, add_generation_prompt=generates)
    assert expected
    assert prompt(source, messages, add_generation_prompt=generates) == expected


@PUBLISHED
@pytest.mark.parametrize("text", ["Water", "Water and ", "Water</s>", " x\n"])
def test_a_final_message_is_continued_as_in_transformers(reference, source, text):
    messages = [USER, {"role": "assistant", "content": text}]
    expected = reference(messages, chat_template=source, continue_final_message=True)
    assert expected.rstrip().endswith(text.strip())
    assert prompt(source, messages, continue_final_message=True) == expected


def test_tool_calls_and_variables_are_those_of_transformers(reference):
    messages = [USER, CALLS, {"role": "tool", "content": "42", "name": "f"}]
    variables = {"enable_thinking": False}
    expected = reference(messages, chat_template=CHATML, add_generation_prompt=True, **variables)
    assert '{"name": "f", "arguments": {"é": [1, "<"]}}' in expected
    assert prompt(CHATML, messages, variables=variables) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0] | tojson(indent=2) }}",
        "{{ messages[0] | tojson(separators=(',', ':'), sort_keys=true) }}",
        "  {% if true %}\n  x\n  {% endif %}\n y\n",
        "{% for m in messages %}{% if loop.first %}{% break %}{% endif %}{{ m }}{% endfor %}.",
        "{% generation %}{% set inner = 1 %}a{% endgeneration %}{{ inner is defined }}",
        "{{ pad_token }}|{{ tools is none }}|{{ documents is none }}",
        "{{ strftime_now('%Y') | length }}",
        "{{ messages | map(attribute='content') | join('+') | upper }}",
    ],
)
def test_the_conventions_of_transformers(reference, source):
    expected = reference([USER], chat_template=source)
    assert prompt(source, [USER], add_generation_prompt=False) == expected


def test_a_message_that_the_template_drops_cannot_be_continued():
    with pytest.raises(Exception, match="leaves out the final message"):
        prompt("{{ messages[0].content }}", [USER, ANSWER], continue_final_message=True)


def test_every_place_where_checkpoints_keep_their_template(tmp_path):
    def source() -> str:
        return read_chat_template(tmp_path).source

    with pytest.raises(NoChatTemplateError, match="it has no chat template"):
        source()
    (tmp_path / "chat_template.json").write_text('{"chat_template": "of json"}')
    assert source() == "of json"
    write_template(tmp_path, "of the config")
    assert source() == "of the config"
    write_template(tmp_path, [{"name": "tool_use", "template": "t"}])
    assert source() == "of json"
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "named"}]
    write_template(tmp_path, named)
    assert source() == "named"
    others = tmp_path / "additional_chat_templates"
    others.mkdir()
    (others / "rag.jinja").write_text("of rag")
    assert source() == "named"
    (others / "default.jinja").write_text("of a folder")
    assert source() == "of a folder"
    (tmp_path / "chat_template.jinja").write_text("of its own")
    assert source() == "of its own"
    assert read_chat_template(tmp_path).file == "chat_template.jinja"


def test_special_tokens_in_either_spelling(tmp_path):
    (tmp_path / "special_tokens_map.json").write_text('{"unk_token": "<u>", "pad_token": "<p>"}')
    others = {"pad_token": None, "sep_token": {"content": "<sep>"}}
    write_template(tmp_path, "x", **others)
    named = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "<sep>"}
    older = {"unk_token": "<u>", "pad_token": "<p>"}
    assert read_chat_template(tmp_path).tokens == named | older
    write_template(tmp_path, "x", **others, added_tokens_decoder={})
    assert read_chat_template(tmp_path).tokens == named
    write_template(tmp_path, "x", mask_token=3)
    with pytest.raises(NoChatTemplateError, match=r"tokenizer_config\.json: mask_token is not"):
        read_chat_template(tmp_path)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ('{"chat_template": [{"name": "rag", "template": "t"}]}', "called default: rag"),
        ('{"chat_template": 3}', "cannot be read"),
        ('{"chat_template": [{"name": "default"}]}', "cannot be read"),
        ("[", "tokenizer_config.json cannot be read"),
        ('{"chat_template": null}', "no chat template"),
        ('{"chat_template": ""}', "no chat template"),
    ],
)
def test_why_a_model_cannot_chat(tmp_path, config, reason):
    (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(NoChatTemplateError, match=reason):
        read_chat_template(tmp_path)


async def refusal(chat: TemplateClient, text: str = "x") -> str:
    with pytest.raises(RefusalError) as caught:
        await ask(chat, text)
    assert (caught.value.code, caught.value.param) == ("invalid_request", "messages")
    return caught.value.message


async def test_a_template_that_hangs_or_grows_ends_alone(tmp_path, caplog):
    async with started(tmp_path, ENDLESS) as chat:
        assert await ask(chat, "fine") == "fine"
        assert "takes more than" in await refusal(chat, "hang")
        assert await ask(chat, "again") == "again"
        assert "characters" in await refusal(chat, "grow")
        assert await ask(chat, "still") == "still"
        assert not caplog.messages  # it is the conversation's doing, and no failure of the process


FAULTS = {
    "{{ raise_exception('Not this.') }}": "Not this.",
    "{{ messages[0].content.__class__.__mro__ }}": "unsafe",
    "{{ messages.append(1) }}": "unsafe",
    "{{ 'x' * 10000000000 }}": "needs more than 1024 MiB of memory",
    "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}": "RecursionError",
    "{{ range(1000000000) | list }}": "Range too big",
    "{{ '\\ud800' }}": "surrogates",
    "{{ nothing.more }}": "'nothing' is undefined",
    "{{ 1 / 0 }}": "ZeroDivisionError",
    "{{ raise_exception('x' * 5000) }}": "x" * 200,
}


async def test_what_a_template_may_not_do(tmp_path, caplog):
    source = "".join(
        f"{{% if messages[0].content == 'fault {number}' %}}{fault}{{% endif %}}"
        for number, fault in enumerate(FAULTS)
    )
    async with started(tmp_path, source + "{{ messages[0].content }}") as chat:
        for number, reason in enumerate(FAULTS.values()):
            message = await refusal(chat, f"fault {number}")
            assert reason in message
            assert len(message) < 700
        assert not caplog.messages, "one process has refused them all"


async def test_a_template_that_does_not_compile_is_told_to_the_log(tmp_path, caplog):
    async with started(tmp_path, "{% for x in %}\n{{ y") as chat:
        for _ in range(2):
            with pytest.raises(RefusalError, match=r"chat_template\.jinja") as caught:
                await ask(chat, "x")
            assert caught.value.param == "model"
        assert "cannot chat: its chat template (chat_template.jinja): line 1" in caplog.text
        chat.check()


async def test_a_model_without_tools_is_told_to_the_log_and_chats(tmp_path, caplog):
    async with started(tmp_path, "{{ messages[0].content }}{# tools #}") as chat:
        assert await ask(chat, "x") == "x"
        (line,) = caplog.messages
        assert line.startswith("model writer serves no tools: its chat template leaves out calls")
        assert chat.found.form is None


async def test_an_answer_that_nobody_waits_for_is_not_the_next_ones(tmp_path):
    async with started(tmp_path, SLOW) as chat:
        assert await ask(chat, "first") == "first"
        left = ask(chat, "slow")
        await asyncio.sleep(0.005)
        left.cancel()
        texts = await asyncio.gather(*(ask(chat, str(i)) for i in range(20)))
        assert texts == [str(i) for i in range(20)]
        assert left.cancelled()
