"""Biases and penalties of the demo model's own tokens, from the request to the text."""

from typing import Any

import httpx
import pytest

from server.demo import GENERATOR_NAME
from tests.e2e.daemon import Daemon

PROMPT = "The function returns"
VOCABULARY = 4096


def text(daemon: Daemon, **fields: Any) -> str:
    body = {"model": GENERATOR_NAME, "prompt": PROMPT, "ignore_eos": True} | fields
    return daemon.ask("/v1/completions", **body)["choices"][0]["text"]


@pytest.mark.parametrize("token", [VOCABULARY, 2**31 - 1])
@pytest.mark.parametrize("stream", [False, True])
def test_a_bias_outside_the_vocabulary_is_refused(demo: Daemon, token: int, stream: bool) -> None:
    bias = {"5": 1, str(token): -1}
    body = {"model": GENERATOR_NAME, "prompt": PROMPT, "stream": stream, "logit_bias": bias}
    answer = httpx.post(f"{demo.url}/v1/completions", json=body)
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
        "max_tokens": 40, "seed": 11, "min_p": 0.02, "presence_penalty": 0.3,
        "frequency_penalty": 0.4, "repetition_penalty": 1.1, "logit_bias": {"394": -3.5, "1141": 2},
    }  # fmt: skip
    assert text(pipeline, **asked) == text(demo, **asked)
