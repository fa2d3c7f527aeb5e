"""A client of `/v1/chat/completions`, and the models that its tests talk to."""

import json

import httpx

from engine_core.messages import GenerateJob
from tests.server.conftest import House
from tests.server.fake_engine import Script

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]


def say_little(house: House) -> House:
    """Every engine says two tokens and ends: without `max_tokens`, chat would go on to the model's
    length."""
    for engine in house.engines.values():
        engine.script = Script(tokens=[40, 41, 1])
        engine.received.clear()
    return house


def post(house: House, **fields) -> httpx.Response:
    return house.post(PATH, {"model": "writer", "messages": HELLO, **fields})


def chat(house: House, **fields) -> dict:
    response = post(house, **fields)
    assert response.status_code == 200, response.text
    return response.json()


def error(house: House, **fields) -> dict:
    response = post(house, **fields)
    assert response.status_code == 400, response.text
    return response.json()["error"]


def chunks_of(house: House, **fields) -> list[dict]:
    response = post(house, stream=True, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in events]


def job_of(house: House, model: str = "writer") -> GenerateJob:
    (job,) = house.engines[model].received
    assert isinstance(job, GenerateJob)
    return job
