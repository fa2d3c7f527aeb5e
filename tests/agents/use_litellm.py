"""litellm: its SDK, and its proxy with openai in front."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import litellm
import openai
import pytest
import yaml
from scripts import ANSWER, question


def run_loop(get_weather, ask):
    """Ask until there is an answer, and return it."""
    messages = [{"role": "user", "content": question()}]
    while calls := (message := ask(messages=messages).choices[0].message).tool_calls:
        messages.append(message)
        for call in calls:
            result = get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return message.content


def run_responses(get_weather, tools, ask):
    """The same by the Responses API."""
    tools = [{"type": "function", **tool["function"]} for tool in tools]
    items = [{"role": "user", "content": question()}]
    while calls := [each for each in ask(input=items, tools=tools).output
                    if each.type == "function_call"]:  # fmt: skip
        for call in calls:
            result = get_weather(**json.loads(call.arguments))
            kept = call.model_dump(include={"type", "call_id", "name", "arguments"})
            output = {"type": "function_call_output", "call_id": call.call_id, "output": result}
            items += [kept, output]
    return ask(input=items, tools=tools).output_text


def complete(**request):
    return litellm.completion(**request)


def complete_streamed(**request):
    pieces = list(litellm.completion(stream=True, **request))
    return litellm.stream_chunk_builder(pieces, messages=request["messages"])


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
@pytest.mark.parametrize("way", [complete, complete_streamed])
def test_sdk(daemon, get_weather, tools, way, provider):
    def ask(**request):
        return way(
            model=f"{provider}/{daemon.model}", api_base=daemon.v1, api_key=daemon.key,
            tools=tools, **request,
        )  # fmt: skip

    assert run_loop(get_weather, ask) == ANSWER


def test_responses_of_the_sdk(daemon, get_weather, tools):
    def ask(**request):
        return litellm.responses(
            model=f"openai/{daemon.model}", api_base=daemon.v1, api_key=daemon.key, **request
        )

    assert run_responses(get_weather, tools, ask) == ANSWER


@pytest.fixture
def proxy(daemon, tmp_path):
    """Its address under which it serves the daemon's model."""
    parameters = {
        "model": f"openai/{daemon.model}", "api_base": daemon.v1, "api_key": daemon.key
    }  # fmt: skip
    listed = [{"model_name": daemon.model, "litellm_params": parameters}]
    configuration = tmp_path / "config.yaml"
    configuration.write_text(
        yaml.safe_dump({"model_list": listed, "general_settings": {"master_key": "sk-proxy"}})
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(sys.executable).with_name("litellm")
    arguments = ["--config", str(configuration), "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen([str(program), *arguments])
    try:
        wait_ready(process, f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def wait_ready(process, url):
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert process.poll() is None, "the proxy has ended"
        try:
            if httpx.get(f"{url}/health/liveliness").is_success:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    pytest.fail("the proxy does not get ready")


def test_proxy(daemon, get_weather, tools, proxy):
    with openai.OpenAI(base_url=proxy, api_key="sk-proxy", max_retries=0) as client:

        def ask(**request):
            return client.chat.completions.create(model=daemon.model, tools=tools, **request)

        assert run_loop(get_weather, ask) == ANSWER


def test_responses_of_the_proxy(daemon, get_weather, tools, proxy):
    with openai.OpenAI(base_url=proxy, api_key="sk-proxy", max_retries=0) as client:

        def ask(**request):
            return client.responses.create(model=daemon.model, **request)

        assert run_responses(get_weather, tools, ask) == ANSWER
