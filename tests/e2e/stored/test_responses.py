"""Stored responses of a real daemon."""

from collections.abc import Generator

import httpx
import pytest

from tests.e2e.daemon import Daemon

PATH = "/v1/responses"


@pytest.fixture
def http(demo: Daemon) -> Generator[httpx.Client]:
    with httpx.Client(base_url=demo.url, timeout=60) as client:
        yield client


def ask(http: httpx.Client, **fields) -> dict:
    body = {"input": "The function returns", "max_output_tokens": 4, "temperature": 0} | fields
    response = http.post(PATH, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_line_of_responses(http):
    """Each has its own input. What comes behind a deleted one goes on as if it were there."""
    first = ask(http)
    assert first["store"]
    second = ask(http, input="And then?", previous_response_id=first["id"])
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    assert http.get(f"{PATH}/{second['id']}").json() == second
    (item,) = http.get(f"{PATH}/{second['id']}/input_items").json()["data"]
    assert item["content"] == [{"type": "input_text", "text": "And then?"}]
    before = ask(http, input="So?", previous_response_id=second["id"], store=False)
    assert http.delete(f"{PATH}/{first['id']}").json()["deleted"]
    for gone in (
        http.get(f"{PATH}/{first['id']}"),
        http.delete(f"{PATH}/{first['id']}"),
        http.get(f"{PATH}/{before['id']}"),
    ):
        assert gone.status_code == 404
    after = ask(http, input="So?", previous_response_id=second["id"], store=False)
    assert after["output"][0]["content"] == before["output"][0]["content"]
    refused = http.post(PATH, json={"input": "a", "previous_response_id": first["id"]})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "previous_response_id"


def test_pages_of_an_input(http):
    texts = ["one", "two", "three"]
    answer = ask(http, input=[{"role": "user", "content": text} for text in texts])
    found: list[str] = []
    after: dict[str, str] = {}
    while True:
        query = {"limit": 2, "order": "asc", **after}
        page = http.get(f"{PATH}/{answer['id']}/input_items", params=query).json()
        found += [item["content"][0]["text"] for item in page["data"]]
        if not page["has_more"]:
            break
        after = {"after": page["last_id"]}
    assert found == texts
