"""`/v1/models` in Anthropic's shape."""

import pytest

from tests.server.conftest import Deployment

VERSION = {"anthropic-version": "2023-06-01"}


def test_the_list(chats: Deployment) -> None:
    names = [card["id"] for card in chats.http.get("/v1/models").json()["data"]]
    page = chats.http.get("/v1/models?limit=1000", headers=VERSION).json()
    assert [info["id"] for info in page["data"]] == names
    assert (page["first_id"], page["last_id"], page["has_more"]) == (names[0], names[-1], False)


@pytest.mark.parametrize("name", ["writer", "org/deep/model"])
def test_one_model(chats: Deployment, name: str) -> None:
    card = chats.http.get(f"/v1/models/{name}").json()
    info = chats.http.get(f"/v1/models/{name}", headers=VERSION).json()
    assert info.pop("created_at").endswith("Z")
    assert info == {
        "type": "model", "id": name, "display_name": name, "lifecycle": "active",
        "max_input_tokens": card["max_model_len"], "max_tokens": card["max_model_len"],
    }  # fmt: skip


def test_no_such_model(chats: Deployment) -> None:
    response = chats.http.get("/v1/models/nobody", headers=VERSION)
    assert (response.status_code, response.json()["error"]["type"]) == (404, "not_found_error")
