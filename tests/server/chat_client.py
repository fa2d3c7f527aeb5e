"""A client of `/v1/chat/completions`, and the models that its tests talk to."""

import httpx

from tests.server.conftest import Deployment, events_in

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]


def say_little(deployment: Deployment) -> Deployment:
    """Every engine says two tokens and ends: without `max_tokens`, chat would go on to the model's
    length."""
    deployment.reset(tokens=[40, 41, 1])
    return deployment


def post(deployment: Deployment, **fields) -> httpx.Response:
    return deployment.post(PATH, {"model": "writer", "messages": HELLO, **fields})


def chat(deployment: Deployment, **fields) -> dict:
    return deployment.ask(PATH, **{"model": "writer", "messages": HELLO} | fields)


def error(deployment: Deployment, **fields) -> dict:
    return deployment.refusal(PATH, **{"model": "writer", "messages": HELLO} | fields)


def chunks_of(deployment: Deployment, **fields) -> list[dict]:
    response = post(deployment, stream=True, **fields)
    assert response.status_code == 200, response.text
    return events_in(response)


def choices(deployment: Deployment, **fields) -> list[dict]:
    """Those of an answer or of a stream, whose `message` or `delta` becomes a `message`."""
    found = deployment.choices(PATH, **{"model": "writer", "messages": HELLO} | fields)
    return [{"message": choice.pop("delta", None), **choice} for choice in found]
