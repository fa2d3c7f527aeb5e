"""Chats with tools, many at once: streams say what whole answers do, and no call is malformed."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from tokenizers import Tokenizer

from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.daemon import running
from tests.e2e.turns.drawn_chats import (
    SCHEMAS,
    TEXT_FORMAT,
    drawn_chat,
    is_json,
    put_together,
    whole,
)
from tests.patience import PATIENCE

_AT_ONCE = 64
_TEMPLATE = """\
{% for tool in tools or [] %}{{ tool.function.name }}
{% endfor %}{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>THOUGHT
{{- m.content or '' }}{% if m.tool_calls %}OPEN{% for t in m.tool_calls %}
{%- set c = t.function %}CALL{% if not loop.last %}BETWEEN{% endif %}{% endfor %}CLOSE{% endif %}
{%- else %}<|user|>{{ m.content }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
_JSON = '{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}'
_TAGS = (
    "<call={{ c.name }}>{% for k, v in c.arguments.items() %}<p={{ k }}>"
    "{{ v if v is string else v | tojson }}</p>{% endfor %}</call>"
)
_PYTHON = (
    "{{ c.name }}({% for k, v in c.arguments.items() %}{{ k }}="
    "{% if v is string %}'{{ v }}'{% else %}{{ v }}{% endif %}"
    "{% if not loop.last %}, {% endif %}{% endfor %})"
)
_THOUGHT = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
FORMS = {
    "JSON in tags, reasoning": ("", f"<tool_call>{_JSON}</tool_call>", "", "", _THOUGHT),
    "a list behind a special token": ("<|system|>[", _JSON, ", ", "]", ""),
    "raw text in tags": ("", _TAGS, "", "", ""),
    "Python's calls": ("[", _PYTHON, ", ", "]", ""),
}
"""What opens sections, calls, what stands between them, what closes sections, and reasoning."""
_STREAMS = 20_000
_CLOSERS = ('"', '"}', "}", "}}", "'", "')", ")", "]", "</")


def write_model(folder: Path, form: tuple[str, ...]) -> Path:
    """The demo generator, with a chat template that writes calls in this form."""
    template = _TEMPLATE
    for name, text in zip(("OPEN", "CALL", "BETWEEN", "CLOSE", "THOUGHT"), form, strict=True):
        template = template.replace(name, text)
    shutil.copytree(demo_models()[GENERATOR_NAME], folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


def biases(folder: Path, form: tuple[str, ...]) -> tuple[dict[str, float], dict[str, float]]:
    """The biases of tokens that open calls, which the model itself hardly writes, and of those that
    close values, without which most calls would be cut."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def biased(bias: float, *texts: str) -> dict[str, float]:
        ids = (tokenizer.encode(text, add_special_tokens=False).ids for text in texts)
        return {str(token): bias for each in ids for token in each}

    opening = (form[0] + form[1]).partition("{")[0].partition("=")[0]
    return biased(8, opening), biased(7, *_CLOSERS)


def faults(body: dict[str, Any], answer: httpx.Response, stream: httpx.Response) -> list[str]:
    """What is wrong with a chat's two answers."""
    if (answer.status_code, stream.status_code) != (200, 200):
        return [answer.text, stream.text]
    read, found = whole(answer.json()), list[str]()
    for name, arguments in read.calls:
        try:
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
        except (ValueError, jsonschema.ValidationError) as error:
            found.append(f"{name} {arguments}: {error}")
    ends = read.finish_reason in ("stop", "tool_calls")
    if ends and body["tool_choice"] not in ("auto", "none") and not read.calls:
        found.append(f"no call: {read}")
    if (read.finish_reason == "tool_calls") != (ends and bool(read.calls)):
        found.append(f"{read.finish_reason} with {len(read.calls)} calls")
    if body["tool_choice"] == "none" and read.calls:
        found.append(f"called: {read}")
    if len(read.calls) > 1 and not body["parallel_tool_calls"]:
        found.append(f"parallel: {read}")
    if ends and not read.calls and body.get("response_format") == TEXT_FORMAT:
        found += [] if is_json(read.text) else [f"text: {read}"]
    return found


def difference(answer: httpx.Response, stream: httpx.Response) -> str:
    if (answer.status_code, stream.status_code) != (200, 200):
        return ""
    read, streamed = whole(answer.json()), put_together(stream.text)
    return "" if read == streamed else f"{read} whole, {streamed} streamed"


async def ask(url: str, bodies: list[dict[str, Any]]) -> list[str]:
    """Every chat's faults. Each is asked whole and streamed, and many at once; two answers that
    differ, once more with nothing beside them: beside other rows a row's logits may round
    otherwise, and about one token of a million is drawn at such an edge."""
    places = asyncio.Semaphore(_AT_ONCE)
    limits = httpx.Limits(max_connections=_AT_ONCE, max_keepalive_connections=_AT_ONCE)
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, limits=limits) as client:

        async def post(body: dict[str, Any]) -> httpx.Response:
            async with places:
                return await client.post("/v1/chat/completions", json=body)

        async def both(body: dict[str, Any]) -> tuple[httpx.Response, httpx.Response]:
            return await asyncio.gather(post(body), post(body | streamed))

        found: list[str] = []
        for body, answers in zip(bodies, await asyncio.gather(*map(both, bodies)), strict=True):
            found += [f"{body}: {fault}" for fault in faults(body, *answers)]
            if difference(*answers):
                alone = await post(body), await post(body | streamed)
                found += [f"{body}: {fault}" for fault in [difference(*alone)] if fault]
        return found


@pytest.mark.parametrize(
    "streams",
    [32, pytest.param(_STREAMS // len(FORMS), marks=[pytest.mark.turns, pytest.mark.timeout(0)])],
)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_streams_say_what_whole_answers_do(
    tmp_path: Path, form: tuple[str, ...], streams: int
) -> None:
    folder = write_model(tmp_path / "model", form)
    openings, closers = biases(folder, form)
    with running(str(folder), "--threads", "1") as daemon:
        bodies = [drawn_chat(seed, openings, closers) for seed in range(streams)]
        found = asyncio.run(ask(daemon.url, bodies))
    assert not found, "\n".join([*found[:5], *daemon.log[-40:]])
