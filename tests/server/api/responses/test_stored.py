"""Responses that are stored: by whom they are found, and what the next prompt has of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.batches.state.database import Change
from server.batches.state.state_folder import StateFolder
from server.settings.settings import State
from tests.server.api.responses.test_responses import (
    FORGETFUL,
    GET,
    PATH,
    PLAIN,
    TURN,
    WRITER,
    events_of,
    prompt_of,
)
from tests.server.batches.state.opened import prepared
from tests.server.batches.state.test_endpoints import MINE, YOURS
from tests.server.chat_client import say_little
from tests.server.chat_templates import chat_deployment
from tests.server.conftest import Deployment
from tests.server.support import api_keys

MOST, LONGEST = 20_000, 16_000


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> State:
    return prepared(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def open_deployment(tokenizer, state) -> Iterator[Deployment]:
    fields = {"state": state, "api_keys": api_keys("mine", "yours"), "max_stored_size": MOST}
    fields |= {"max_body_size": LONGEST}
    templates = {"writer": WRITER, "forgetful": FORGETFUL}
    with chat_deployment(tokenizer, templates, **fields) as deployment:
        yield deployment


@pytest.fixture
def deployment(open_deployment, state) -> Iterator[Deployment]:
    """One in whose folder nothing is left of earlier tests."""
    open_deployment.http.headers.update(MINE)
    yield say_little(open_deployment)
    folder = StateFolder(Path(state.folder), state.token)
    folder.database.change(Change("DELETE FROM responses"))
    folder.close()


def ask(deployment: Deployment, **fields: Any) -> dict[str, Any]:
    for engine in deployment.engines.values():
        engine.received.clear()
    return deployment.ask(PATH, **{"model": "writer", "input": "Hello"} | fields)


def test_the_next_prompt_has_all_before_it(deployment, say):
    """Whatever is deleted of it. Instructions are of one request alone."""
    say(TURN.replace("NAME", "get").replace("KEY", "a"))
    first = ask(deployment, input="First", instructions="Be brief.", tools=[GET])
    result = {"type": "function_call_output", "output": "seven"}
    result["call_id"] = first["output"][-1]["call_id"]
    say(PLAIN)
    second = ask(deployment, input=[result], tools=[GET], previous_response_id=first["id"])
    gone = deployment.http.delete(f"{PATH}/{first['id']}").json()
    assert gone == {"id": first["id"], "object": "response", "deleted": True}
    third = ask(deployment, input="Third", tools=[GET], previous_response_id=second["id"])
    assert (third["previous_response_id"], third["store"]) == (second["id"], True)
    prompt = prompt_of(deployment)
    order = ["First", "Hm.", "I look.", '{"name": "get", "arguments": {"a": "x"}}', "seven", "Hm.",
             "No.", "Third"]  # fmt: skip
    begin = 0
    for text in order:
        begin = prompt.index(text, begin) + len(text)
    assert "Be brief." not in prompt
    counted = {"input": "Third", "tools": [GET], "previous_response_id": second["id"]}
    tokens = deployment.ask(f"{PATH}/input_tokens", model="writer", **counted)["input_tokens"]
    assert tokens == third["usage"]["input_tokens"]


def test_stored_reasoning_that_the_template_never_writes_is_left_out(deployment, say):
    say(PLAIN)
    first = ask(deployment)
    body = {"model": "forgetful", "input": "Go on.", "previous_response_id": first["id"]}
    response = deployment.post(PATH, body)
    assert response.status_code == 200, response.text
    assert response.headers["x-penstock-ignored"] == "previous_response_id[1]"


@pytest.mark.parametrize("streamed", [False, True])
def test_what_is_stored_is_the_answer(deployment, say, streamed):
    say(PLAIN)
    answer = events_of(deployment)[-1]["response"] if streamed else ask(deployment)
    assert answer["store"]
    assert deployment.http.get(f"{PATH}/{answer['id']}").json() == answer


def test_what_is_not_stored_is_not_found(deployment, say):
    say(PLAIN)
    answer = ask(deployment, store=False)
    assert not answer["store"]
    assert deployment.http.get(f"{PATH}/{answer['id']}").status_code == 404


def test_another_key_s_do_not_exist(deployment, say):
    say(PLAIN)
    path = f"{PATH}/{(answer := ask(deployment))['id']}"
    deployment.http.headers.update(YOURS)
    for method, of in (("GET", ""), ("DELETE", ""), ("GET", "/input_items")):
        refused = deployment.http.request(method, path + of)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")
    fields = {"model": "writer", "input": "Go on.", "previous_response_id": answer["id"]}
    assert deployment.refusal(PATH, **fields)["param"] == "previous_response_id"
    deployment.http.headers.update(MINE)
    assert deployment.http.get(path).json() == answer


def test_a_full_store_is_no_error_unless_it_has_to_be_stored(deployment, say):
    say(PLAIN)
    long = "a" * (MOST // 2)
    ids = [ask(deployment, input=long, truncation="auto")["id"] for _ in range(2)]
    assert not ask(deployment)["store"]
    refused = deployment.post(PATH, {"model": "writer", "input": "Hello", "store": True})
    assert refused.status_code == 403
    assert (error := refused.json()["error"])["code"] == "quota_exceeded"
    assert error["param"] == "store"
    deployment.http.headers.update(YOURS)
    assert ask(deployment)["store"], "the other key has its own"
    deployment.http.headers.update(MINE)
    assert ask(deployment, previous_response_id=ids[0], store=False)


def test_a_conversation_is_no_longer_than_a_body(deployment, say):
    say(PLAIN)
    first = ask(deployment, input="a" * (LONGEST // 2), truncation="auto")
    again = {"previous_response_id": first["id"], "truncation": "auto"}
    second = ask(deployment, input="b" * (LONGEST // 2), **again)
    fields = {"model": "writer", "input": "Go on.", "previous_response_id": second["id"]}
    refused = deployment.refusal(PATH, **fields)
    assert (refused["code"], refused["param"]) == ("too_large", "previous_response_id")
    assert f"more than {LONGEST} bytes" in refused["message"]


def test_a_lost_database_is_no_error_unless_it_has_to_be_stored(deployment, say, state):
    say(PLAIN)
    database = Path(state.folder) / "penstock.db"
    elsewhere = database.rename(database.with_name("elsewhere"))
    try:
        assert not ask(deployment)["store"]
        refused = deployment.post(PATH, {"model": "writer", "input": "Hello", "store": True})
    finally:
        elsewhere.rename(database)
    assert (refused.status_code, refused.json()["error"]["param"]) == (501, "store")
