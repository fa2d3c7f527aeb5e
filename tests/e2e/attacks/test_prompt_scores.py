"""A small request for an enormous answer: log-probabilities of many prompts' tokens."""

import httpx

from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.daemon import running
from tests.patience import PATIENCE


def test_log_probabilities_of_too_many_prompts_are_refused_before_they_are_computed() -> None:
    model = str(demo_models()[GENERATOR_NAME])
    with running(model, "--threads", "1") as daemon:
        body = {"prompt": [[9] * 500] * 500, "max_tokens": 0}
        for scored in ({"prompt_logprobs": 20}, {"echo": True, "logprobs": 20}):
            answer = httpx.post(
                f"{daemon.url}/v1/completions", json={**body, **scored}, timeout=PATIENCE
            )
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert error["code"] == "too_large"
            assert "250000 prompt tokens x (20 + 1)" in error["message"]
        # Each choice repeats the scores.
        small = {"prompt": [9] * 500, "max_tokens": 0, "prompt_logprobs": 20, "n": 128}
        answer = httpx.post(f"{daemon.url}/v1/completions", json=small, timeout=60)
        scores = [choice["prompt_logprobs"] for choice in answer.json()["choices"]]
        assert [len(entries) for entries in scores] == [500] * 128
        assert all(entries == scores[0] for entries in scores)
        large = {**small, "prompt": [[9] * 500] * 4}
        answer = httpx.post(f"{daemon.url}/v1/completions", json=large, timeout=60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "too_large")
