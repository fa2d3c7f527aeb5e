import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
def test_there_and_back(deployment, text):
    tokens = deployment.post(
        "/tokenize", {"model": "writer", "prompt": text, "add_special_tokens": False}
    ).json()
    assert tokens["count"] == len(tokens["tokens"])
    body = {"model": "writer", "tokens": tokens["tokens"]}
    assert deployment.post("/detokenize", body).json() == {"prompt": text}


def test_special_tokens_are_there_unless_declined(deployment):
    with_special = deployment.post("/tokenize", {"model": "writer", "prompt": "Hello"}).json()
    assert with_special["tokens"][0] == 0
    assert with_special["max_model_len"] == 2048
    body = {"model": "writer", "prompt": "Hello", "add_special_tokens": False}
    assert deployment.post("/tokenize", body).json()["tokens"] == with_special["tokens"][1:]
    body = {"model": "writer", "tokens": with_special["tokens"]}
    assert deployment.post("/detokenize", body).json() == {"prompt": "<s>Hello"}


def test_spellings_if_asked_for(deployment, tokenizer):
    body = {"model": "writer", "prompt": "naïve 漢"}
    plain = deployment.post("/tokenize", body).json()
    spelled = deployment.post("/tokenize", {**body, "return_token_strs": True}).json()
    assert spelled == {**plain, "token_strs": tokenizer.raw.encode(body["prompt"]).tokens}
    assert "token_strs" not in plain


@pytest.mark.parametrize("tokens", [[-1], [1, 99_999], [2**63]])
def test_ids_outside_the_vocabulary(deployment, tokens):
    response = deployment.post("/detokenize", {"model": "writer", "tokens": tokens})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == f"tokens[{len(tokens) - 1}]"


def test_the_model_must_be_named(deployment):
    response = deployment.post("/tokenize", {"prompt": "a"})
    assert response.json()["error"]["code"] == "model_required"
