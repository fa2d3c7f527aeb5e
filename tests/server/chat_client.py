"""A client of `/v1/chat/completions`, and the models that its tests talk to."""

import json

import httpx

from engine_core.messages import GenerateJob
from tests.server.conftest import Deployment
from tests.server.fake_engine import Script

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]


def say_little(deployment: Deployment) -> Deployment:
    """Every engine says two tokens and ends: without `max_tokens`, chat would go on to the model's
    length."""
    for engine in deployment.engines.values():
        engine.script = Script(tokens=[40, 41, 1])
        engine.received.clear()
    return deployment


def post(deployment: Deployment, **fields) -> httpx.Response:
    return deployment.post(PATH, {"model": "writer", "messages": HELLO, **fields})


def chat(deployment: Deployment, **fields) -> dict:
    response = post(deployment, **fields)
    assert response.status_code == 200, response.text
    return response.json()


def error(deployment: Deployment, **fields) -> dict:
    response = post(deployment, **fields)
    assert response.status_code == 400, response.text
    return response.json()["error"]


def chunks_of(deployment: Deployment, **fields) -> list[dict]:
    response = post(deployment, stream=True, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in events]


def job_of(deployment: Deployment, model: str = "writer") -> GenerateJob:
    (job,) = deployment.engines[model].received
    assert isinstance(job, GenerateJob)
    return job
