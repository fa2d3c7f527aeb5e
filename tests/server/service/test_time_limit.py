"""`--max-request-seconds`: no request runs longer."""

import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.settings.settings import Limits
from tests.patience import wait_until
from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.fake_engine import Script
from tests.server.support import server_config

LIMIT_S = 2.0
"""A chat's prompt is written in that time, on a busy machine, too."""

FOX: dict[str, Any] = {"model": "writer", "max_tokens": 1000, "ignore_eos": True}
CHAT = {**FOX, "messages": [{"role": "user", "content": "The"}]}
TEXTS = {"/v1/completions": {**FOX, "prompt": "The"}, "/v1/chat/completions": CHAT}
TEMPLATE = """{{ messages[0].content }}
{%- if messages[0].content == "slow" %}
{%- for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}
{%- endif %}"""
OTHERS: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"model": "embedder", "input": "The"},
    "/v1/rerank": {"model": "ranker", "query": "The", "documents": ["fox"]},
    "/v1/score": {"model": "embedder", "text_1": "The", "text_2": "fox"},
    "/v1/classify": {"model": "ranker", "input": "The"},
    "/embed": {"model": "embedder", "inputs": "The"},
}


@pytest.fixture(scope="module")
def limited(module_builder: DeploymentBuilder) -> Deployment:
    models = module_builder.models()
    Path(models[0].path, "chat_template.jinja").write_text(TEMPLATE)
    limits = Limits(max_request_seconds=LIMIT_S)
    return module_builder.open(server_config(*models, limits=limits))


@pytest.fixture(params=["held", "deaf"])
def stuck(limited: Deployment, request: pytest.FixtureRequest) -> Iterator[Deployment]:
    """Jobs are accepted and wait, or are not even accepted."""
    for engine in limited.engines.values():
        setattr(engine.script, request.param, True)
    yield limited
    for engine in limited.engines.values():
        engine.script = Script()


def timed(deployment: Deployment, asked: list[tuple[str, dict[str, Any]]]) -> list[httpx.Response]:
    """The answers, which take as long as a request may, where the engines give none."""
    started = time.monotonic()
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = [pool.submit(deployment.post, *each) for each in asked]
        wait(answers, return_when=FIRST_COMPLETED)
        assert time.monotonic() - started > LIMIT_S * 0.9
    return [answer.result() for answer in answers]


def test_texts_end_with_what_there_is(stuck: Deployment) -> None:
    forms: list[dict[str, Any]] = [{}, {"timeout": 100}, {"stream": True}]
    asked = [(path, {**TEXTS[path], **fields}) for path in TEXTS for fields in forms]
    for answer in timed(stuck, asked):
        assert answer.status_code == 200
        assert '"finish_reason":"timeout"' in answer.text


def test_all_else_is_refused_and_leaves_the_engine(stuck: Deployment) -> None:
    for path, answer in zip(OTHERS, timed(stuck, list(OTHERS.items())), strict=True):
        assert answer.status_code == (424 if path == "/embed" else 504)
        assert f"{LIMIT_S:g} s" in answer.text
    for engine in stuck.engines.values():
        wait_until(lambda engine=engine: len(engine.aborted) == len(engine.received))


def test_a_shorter_timeout_stays(limited: Deployment) -> None:
    limited.engines["writer"].script.held = True
    started = time.monotonic()
    body = {**TEXTS["/v1/completions"], "timeout": 0.05}
    answer = limited.post("/v1/completions", body).json()
    limited.engines["writer"].script.held = False
    assert answer["choices"][0]["finish_reason"] == "timeout"
    assert time.monotonic() - started < LIMIT_S


def test_what_is_fast_enough_is_answered(limited: Deployment) -> None:
    short = {path: {**body, "max_tokens": 2} for path, body in TEXTS.items()}
    for path, body in {**short, **OTHERS}.items():
        assert limited.post(path, body).status_code == 200, path


def test_a_template_that_takes_all_the_time(limited: Deployment) -> None:
    slow = {**CHAT, "messages": [{"role": "user", "content": "slow"}]}
    (answer,) = timed(limited, [("/v1/chat/completions", slow)])
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "request_timeout")
