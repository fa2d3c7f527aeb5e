"""Biases and penalties of the demo model's own tokens, from the request to the text."""

from collections import Counter
from itertools import pairwise
from typing import Any

import httpx
import pytest

from server.demo import GENERATOR_NAME
from tests.e2e.daemon import Daemon

PROMPT = "The function returns"
VOCABULARY = 4096


def complete(daemon: Daemon, **fields: Any) -> httpx.Response:
    body = {"model": GENERATOR_NAME, "prompt": PROMPT, "ignore_eos": True} | fields
    return httpx.post(f"{daemon.url}/v1/completions", json=body, timeout=60)


def text(daemon: Daemon, **fields: Any) -> str:
    answer = complete(daemon, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def tokens(daemon: Daemon, spelled: str) -> list[int]:
    body = {"model": GENERATOR_NAME, "prompt": spelled, "add_special_tokens": False}
    return httpx.post(f"{daemon.url}/tokenize", json=body).json()["tokens"]


def most_repeated(spelled: str) -> int:
    """How often the commonest pair of words comes."""
    return max(Counter(pairwise(spelled.split())).values())


def test_a_bias_bans_the_best_token_or_forces_another(demo: Daemon) -> None:
    first = text(demo, temperature=0, max_tokens=1)
    (best,) = tokens(demo, first)
    banned = text(demo, temperature=0, max_tokens=1, logit_bias={str(best): -100})
    assert banned != first
    (second,) = tokens(demo, banned)
    forced = text(demo, temperature=1.5, seed=3, max_tokens=4, logit_bias={str(second): 100})
    assert forced == banned * 4


def test_penalties_end_a_repetition(demo: Daemon) -> None:
    greedy: dict[str, Any] = {"temperature": 0, "max_tokens": 100}
    plain = text(demo, **greedy)
    assert most_repeated(plain) >= 5
    for penalty in ({"frequency_penalty": 2}, {"repetition_penalty": 2}):
        assert most_repeated(text(demo, **greedy, **penalty)) <= 2
    assert text(demo, **greedy, presence_penalty=2) != plain


def test_min_p_of_one_leaves_the_best_token(demo: Daemon) -> None:
    greedy = text(demo, temperature=0, max_tokens=20)
    assert text(demo, temperature=2, seed=1, max_tokens=20) != greedy
    assert text(demo, temperature=2, seed=1, max_tokens=20, min_p=1) == greedy


@pytest.mark.parametrize("token", [VOCABULARY, 2**31 - 1])
@pytest.mark.parametrize("stream", [False, True])
def test_a_bias_outside_the_vocabulary_is_refused(demo: Daemon, token: int, stream: bool) -> None:
    answer = complete(demo, logit_bias={"5": 1, str(token): -1}, stream=stream)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_request", "logit_bias")
    assert error["message"] == (
        f"logit_bias names token id {token}; this model's vocabulary ends at {VOCABULARY - 1}"
    )
    assert text(demo, max_tokens=2, logit_bias={str(VOCABULARY - 1): -1})


def test_a_pipeline_gives_the_text_of_one_stage(demo: Daemon, pipeline: Daemon) -> None:
    """The last stage counts tokens; the requests' own order of steps must not matter."""
    asked: dict[str, Any] = {
        "max_tokens": 40,
        "seed": 11,
        "min_p": 0.02,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "repetition_penalty": 1.1,
        "logit_bias": {"394": -3.5, "1141": 2},
    }
    assert text(pipeline, **asked) == text(demo, **asked)
