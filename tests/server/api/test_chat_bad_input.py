"""What chat refuses beside single fields: bodies, models and templates that cannot."""

import json

import httpx
import pytest

from benchmarks.daemon.process_stats import cpu_seconds
from tests.e2e.daemon import children_of
from tests.server.chat_client import HELLO, PATH, chat, error, post
from tests.server.conftest import Deployment


@pytest.fixture
def deployment(chats: Deployment) -> Deployment:
    return chats


@pytest.mark.parametrize("arguments", ["", "{}", '{"a": 1}', "[1]", "{", "1e999", "[" * 5000])
def test_arguments_of_tool_calls(deployment, arguments):
    call = {"function": {"name": "f", "arguments": arguments}}
    asked = {"model": "chatml", "messages": [*HELLO, {"role": "assistant", "tool_calls": [call]}]}
    if arguments in ("", "{}", '{"a": 1}'):
        assert chat(deployment, **asked)
    else:
        param = "messages[1].tool_calls[0].function.arguments"
        assert error(deployment, **asked)["param"] == param


def with_variable(value: bytes, model: str = "writer") -> bytes:
    messages = json.dumps(HELLO).encode()
    body = b'{"model": "%b", "messages": %b, "chat_template_kwargs": {"x": %b}}'
    return body % (model.encode(), messages, value)


@pytest.mark.parametrize(
    "value", [b"1e999", b"NaN", b'"\\ud800"', b'"\xff"', b"[" * 100_000 + b"]" * 100_000]
)
def test_a_variable_that_cannot_be(deployment, value):
    response = deployment.http.post(PATH, content=with_variable(value))
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_request"


@pytest.mark.parametrize("depth", range(400, 1400, 50))
def test_variables_however_deep_get_an_answer(deployment, depth):
    body = with_variable(b"[" * depth + b"]" * depth, "chatml")
    assert deployment.http.post(PATH, content=body).status_code in (200, 400)


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
    refused = deployment.refusal(path, model=model, messages=HELLO)
    assert refused["param"] == "model"
    assert reason in refused["message"]
    assert deployment.ask("/v1/completions", model=model, prompt="a")


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
