"""What chat refuses: messages, fields and bodies at fault, models and templates that cannot."""

import json
from collections.abc import Iterator

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.daemon.process_stats import cpu_seconds
from engine_core.messages import Failed
from server.http.body import derived
from server.schemas.chat import ChatMessage, ChatRequest
from tests.e2e.daemon import children_of
from tests.patience import wait_until
from tests.server.chat_client import HELLO, PATH, chat, error, post, say_little
from tests.server.chat_templates import CHATML, ENDLESS, LLAMA3, MISTRAL, chat_deployment
from tests.server.conftest import Deployment


@pytest.fixture(scope="module")
def open_deployment(tokenizer) -> Iterator[Deployment]:
    templates = {
        "writer": LLAMA3,
        "chatml": CHATML,
        "mistral": MISTRAL,
        "plain": None,
        "broken": "{% if",
        "endless": ENDLESS,
    }
    with chat_deployment(tokenizer, templates) as deployment:
        yield deployment


@pytest.fixture
def deployment(open_deployment) -> Deployment:
    return say_little(open_deployment)


REFUSAL = {"type": "refusal", "refusal": "I cannot."}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("Hello", "messages"),
        ([{"content": "a"}], "messages[0].role"),
        ([*HELLO, {"role": "", "content": "a"}], "messages[1].role"),
        ([*HELLO, {"role": "x" * 65, "content": "a"}], "messages[1].role"),
        ([{"role": "function"}], "messages[0].content"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "tool", "content": None}], "messages[0].content"),
        ([*HELLO, {"role": "user", "content": 3}], "messages[1].content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}],
            "messages[0].content[1]",
        ),
        ([{"role": "user", "content": ["a"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": "a", "name": 3}], "messages[0].name"),
        ([{"role": "user", "content": "a", "tool_calls": [TOOL]}], "messages[0].tool_calls"),
        ([{"role": "user", "content": "a", "refusal": "no"}], "messages[0].refusal"),
        ([{"role": "user", "content": [REFUSAL]}], "messages[0].content[0]"),
        (
            [{"role": "assistant", "content": [{"type": "refusal"}]}],
            "messages[0].content[0].refusal",
        ),
    ],
)
def test_messages_at_fault(deployment, messages, param):
    refused = error(deployment, messages=messages)
    if param == "messages[0].tool_calls":
        assert refused["param"].startswith(param)
    else:
        assert refused["param"] == param


@pytest.mark.parametrize("arguments", ["", "{}", '{"a": 1}', "[1]", "{", "1e999", "[" * 5000])
def test_arguments_of_tool_calls(deployment, arguments):
    call = {"function": {"name": "f", "arguments": arguments}}
    talk = [*HELLO, {"role": "assistant", "tool_calls": [call]}]
    response = post(deployment, model="chatml", messages=talk)
    if arguments in ("", "{}", '{"a": 1}'):
        assert response.status_code == 200, response.text
    else:
        assert response.status_code == 400
        param = "messages[1].tool_calls[0].function.arguments"
        assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs.bos_token"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        (
            {"continue_final_message": True, "messages": [{"role": "assistant"}]},
            "continue_final_message",
        ),
        ({"stop_token_ids": [99999]}, "stop_token_ids[0]"),
        ({"regex": "a", "choice": ["a"]}, "choice"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
    ],
)
def test_fields_at_fault(deployment, fields, param):
    assert error(deployment, **fields)["param"] == param


@pytest.mark.parametrize(
    "raw",
    [
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'{"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"x": 1e999}}',
        b'{"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"x": NaN}}',
        b'{"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"x": '
        + b"[" * 100_000
        + b"]" * 100_000
        + b"}}",
    ],
)
def test_bodies_at_fault(deployment, raw):
    raw = raw.replace(b'{"messages"', b'{"model": "writer", "messages"', 1)
    response = deployment.http.post(PATH, content=raw)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_request"


@pytest.mark.parametrize("depth", range(400, 1400, 50))
def test_variables_however_deep_get_an_answer(deployment, depth):
    nested = "[" * depth + "]" * depth
    raw = f'{{"model": "chatml", "messages": {json.dumps(HELLO)}, '
    raw += f'"chat_template_kwargs": {{"x": {nested}}}}}'
    assert deployment.http.post(PATH, content=raw.encode()).status_code in (200, 400)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, -(2**63) - 1, 10**30, 0, -1])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    field=st.sampled_from([name for name in ChatRequest.__struct_fields__ if name != "model"]),
    junk=JUNK,
)
def test_junk_in_any_field_is_answered_or_refused_by_name(deployment, field, junk):
    response = post(deployment, **{"max_completion_tokens": 4, field: junk})
    if response.status_code != 200:
        assert response.status_code in (400, 404), response.text
        refused = response.json()["error"]
        assert refused["param"].split(".")[0].split("[")[0] in (field, "prompt", "stream_options")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(
    field=st.sampled_from(ChatMessage.__struct_fields__),
    role=st.sampled_from(["system", "developer", "user", "assistant", "tool", "wizard"]),
    junk=JUNK,
)
def test_junk_in_any_message_is_answered_or_refused_by_place(deployment, field, role, junk):
    message = {"role": role, "content": "a", field: junk}
    response = post(deployment, model="chatml", messages=[*HELLO, message])
    if response.status_code != 200:
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"].startswith("messages")


def test_strict_fields_go_down_into_messages():
    body = msgspec.json.Decoder(derived(ChatRequest, strictly=True))
    assert body.decode(json.dumps({"messages": HELLO, "chat_template_kwargs": {"x": {"y": 1}}}))
    with pytest.raises(msgspec.ValidationError, match="unknown field `cotent`"):
        body.decode(json.dumps({"messages": [{"role": "user", "content": "a", "cotent": "b"}]}))


def test_a_template_that_refuses(deployment):
    refused = error(deployment, model="mistral", messages=[*HELLO, *HELLO])
    assert refused["param"] == "messages"
    assert "Roles must alternate user/assistant" in refused["message"]


@pytest.mark.parametrize(
    ("model", "reason"),
    [("plain", "it has no chat template"), ("broken", "tokenizer_config.json): line 1")],
)
@pytest.mark.parametrize("path", [PATH, "/tokenize"])
def test_models_that_cannot_chat(deployment, model, reason, path):
    response = deployment.post(path, {"model": model, "messages": HELLO})
    assert response.status_code == 400
    refused = response.json()["error"]
    assert refused["param"] == "model"
    assert reason in refused["message"]
    assert deployment.post("/v1/completions", {"model": model, "prompt": "a"}).status_code == 200


def test_a_template_that_hangs_holds_up_nobody_else(deployment):
    slow = {"model": "endless", "messages": [{"role": "user", "content": "hang"}]}
    refused = deployment.post(PATH, slow).json()["error"]
    assert "takes more than" in refused["message"]
    with pytest.raises(httpx.ReadTimeout):
        deployment.http.post(PATH, json=slow, timeout=0.2)  # one who does not wait
    rendering = children_of(deployment.api.process.pid)["server.templates.template_main"]
    before = sum(map(cpu_seconds, rendering))
    assert chat(deployment)["choices"]
    assert sum(map(cpu_seconds, rendering)) - before < 1.5, "nobody waits for what was asked first"
    assert post(deployment, model="endless").status_code == 200


def test_a_template_process_that_is_killed_is_replaced(deployment):
    assert error(deployment, model="endless", messages=[{"role": "user", "content": "grow"}])
    for _ in range(3):
        assert post(deployment, model="endless").status_code == 200


@pytest.mark.parametrize("streamed", [False, True])
def test_an_engine_that_refuses_is_told_in_chats_names(deployment, streamed):
    deployment.engines["writer"].script.refusal = Failed(
        0, "context_length_exceeded", "2048 tokens fit; prompt has 3000", "prompt"
    )
    refused = error(deployment, stream=streamed)
    assert (refused["param"], refused["code"]) == ("messages", "context_length_exceeded")


@pytest.mark.parametrize("streamed", [False, True])
def test_an_engine_whose_queue_is_too_long(deployment, streamed):
    script = deployment.engines["writer"].script
    script.refusal = Failed(0, "overloaded", "would wait 31 s", None, 30.2)
    for _ in range(3):
        refused = post(deployment, stream=streamed)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "31")
    script.refusal = None
    wait_until(lambda: post(deployment).status_code == 200)


def test_embedders_do_not_chat(shared_deployment):
    body = {"model": "embedder", "messages": HELLO}
    response = shared_deployment.post(PATH, body)
    assert response.json()["error"]["code"] == "wrong_endpoint"
