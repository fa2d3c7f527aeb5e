"""`logprob_token_ids`: the tokens reported beside each generated one in place of the likeliest."""

from array import array
from typing import Any

import pytest

from tests.server import chat_client
from tests.server.api.test_completions import complete
from tests.server.conftest import Deployment

Alternatives = list[tuple[str, float]]
ENDPOINTS = pytest.mark.parametrize("endpoint", ["completions", "chat"])


@pytest.fixture
def deployment(chats: Deployment) -> Deployment:
    """Its writer has a template."""
    return chats


def told(deployment: Deployment, endpoint: str, count: int, **fields: Any) -> list[Alternatives]:
    """The alternatives to all tokens, choice after choice, of a request that wants `count` of the
    likeliest."""
    fields = {"return_tokens_as_token_ids": True, "max_tokens": 50} | fields
    if endpoint == "completions":
        fields |= {"model": "writer", "prompt": "a", "logprobs": count}
        choices = deployment.choices("/v1/completions", **fields)
        return [[*top.items()] for each in choices for top in each["logprobs"]["top_logprobs"]]
    choices = chat_client.choices(deployment, logprobs=True, top_logprobs=count, **fields)
    entries = [entry for each in choices for entry in each["logprobs"]["content"]]
    return [[(top["token"], top["logprob"]) for top in entry["top_logprobs"]] for entry in entries]


def expected(tokens: list[int], named: list[int]) -> list[Alternatives]:
    """Each token itself, then the named ones in their order. The fake engine says −0.5 of a token,
    and of what is named −1, −2, …"""
    values = {token: -1.0 - place for place, token in enumerate(named)}
    found = [
        [(token, -0.5), *((i, v) for i, v in values.items() if i != token)] for token in tokens
    ]
    return [[(f"token_id:{token}", value) for token, value in each] for each in found]


@pytest.mark.parametrize("count", [0, 5])
@pytest.mark.parametrize("streamed", [False, True])
@ENDPOINTS
def test_named_tokens_stand_behind_the_token_itself(deployment, say, endpoint, streamed, count):
    tokens = [*say("größer 漢 then"), 1]
    named = [300, tokens[1], 17]
    fields = {"stream": streamed, "n": 2}
    found = told(deployment, endpoint, count, logprob_token_ids=[*named, 300, 17], **fields)
    assert found == expected(tokens, named) * 2
    params = deployment.job("writer").params
    assert (params.logprobs, params.logprob_token_ids) == (0, array("i", named).tobytes())


@ENDPOINTS
def test_an_empty_list_leaves_the_likeliest(deployment, say, endpoint):
    say("so")
    plain = told(deployment, endpoint, 2)
    assert told(deployment, endpoint, 2, logprob_token_ids=[]) == plain
    assert told(deployment, endpoint, 2, logprob_token_ids=None) == plain


@ENDPOINTS
def test_more_are_told_than_of_the_likeliest(deployment, say, endpoint):
    tokens, named = [*say("so"), 1], [*range(200, 328)]
    assert told(deployment, endpoint, 1, logprob_token_ids=named) == expected(tokens, named)


def test_a_prompt_keeps_its_likeliest(deployment, say):
    """With `echo`, and where `prompt_logprobs` wants more of them."""
    tokens = [*say("so"), 1]
    fields = {"model": "writer", "prompt": "The quick", "max_tokens": 50, "echo": True}
    fields |= {"logprobs": 1, "prompt_logprobs": 3, "logprob_token_ids": [17, 18]}
    (choice,) = complete(deployment, **fields, return_tokens_as_token_ids=True)["choices"]
    first, *others = choice["logprobs"]["top_logprobs"]
    assert first is None
    of_prompt, sampled = others[: -len(tokens)], others[-len(tokens) :]
    assert of_prompt
    assert all(set(top.values()) == {-1.0, -0.5} and "token_id:0" in top for top in of_prompt)
    assert [[*top.items()] for top in sampled] == expected(tokens, [17, 18])
    params = deployment.job("writer").params
    assert (params.logprobs, params.prompt_logprobs) == (0, 3)
