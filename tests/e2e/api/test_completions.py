"""Completions of the demo model: scores, ends, priorities, deadlines, seeds in any company."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from server.demo import GENERATOR_NAME
from tests.e2e.daemon import Daemon, metric
from tests.patience import wait_until

PROMPT = "The function returns"
VOCABULARY = 4096


def post(daemon: Daemon, **fields: Any) -> httpx.Response:
    body = {"model": GENERATOR_NAME, "prompt": PROMPT} | fields
    return httpx.post(f"{daemon.url}/v1/completions", json=body, timeout=120)


def complete(daemon: Daemon, **fields: Any) -> dict[str, Any]:
    return daemon.ask("/v1/completions", **{"model": GENERATOR_NAME, "prompt": PROMPT} | fields)


def choice(daemon: Daemon, **fields: Any) -> dict[str, Any]:
    return complete(daemon, **fields)["choices"][0]


def test_a_prompts_scores_are_those_of_generating_it(demo: Daemon) -> None:
    """Echo, prompt_logprobs and generation tell the same numbers of the same tokens."""
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "return_token_ids": True}
    said = choice(demo, **fields, logprobs=1, ignore_eos=True)
    ids = said["prompt_token_ids"] + said["token_ids"]
    scored = choice(demo, prompt=ids, max_tokens=0, echo=True, logprobs=1, prompt_logprobs=2)
    assert scored["text"] == PROMPT + said["text"]
    assert scored["finish_reason"] == "length"
    told = scored["logprobs"]["token_logprobs"]
    assert told[0] is None
    assert told[-12:] == pytest.approx(said["logprobs"]["token_logprobs"], abs=1e-3)
    assert scored["prompt_logprobs"][0] is None
    entries = scored["prompt_logprobs"][1:]
    for token, entry, value in zip(ids[1:], entries, told[1:], strict=True):
        assert entry[str(token)]["logprob"] == value
        better = sum(other["logprob"] > value for other in entry.values())
        assert entry[str(token)]["rank"] >= better + 1
    greedy = zip(ids[-12:], entries[-12:], strict=True)
    assert {entry[str(token)]["rank"] for token, entry in greedy} == {1}
    assert {len(entry) for entry in entries} <= {2, 3}


def test_a_prompt_is_scored_once_for_all_its_choices(demo: Daemon) -> None:
    """Each has the scores, also in a stream, where they may come behind its own first tokens."""
    long = "word " * 300
    fields: dict[str, Any] = {"n": 3, "max_tokens": 2, "echo": True, "logprobs": 1, "seed": 4}
    whole = complete(demo, prompt=[long, PROMPT], **fields)["choices"]
    for first in (0, 3):
        told = [each["logprobs"]["token_logprobs"][:-2] for each in whole[first : first + 3]]
        assert told[0][1:]
        assert told[1] == told[2] == told[0]
    streamed: dict[int, list[float]] = {}
    texts: dict[int, str] = {}
    for line in post(demo, prompt=[long, PROMPT], **fields, stream=True).text.splitlines():
        if line.startswith("data: {"):
            (piece,) = json.loads(line[6:])["choices"]
            streamed.setdefault(piece["index"], []).extend(piece["logprobs"]["token_logprobs"])
            texts[piece["index"]] = texts.get(piece["index"], "") + piece["text"]
    assert texts == {each["index"]: each["text"] for each in whole}
    for each in whole:
        assert streamed[each["index"]] == pytest.approx(
            each["logprobs"]["token_logprobs"], abs=1e-3, nan_ok=True
        )


@pytest.mark.parametrize("token", [VOCABULARY, 2**31 - 1])
@pytest.mark.parametrize("stream", [False, True])
def test_a_bias_outside_the_vocabulary_is_refused(demo: Daemon, token: int, stream: bool) -> None:
    answer = post(demo, stream=stream, logit_bias={"5": 1, str(token): -1})
    error = answer.json()["error"]
    told = (answer.status_code, error["code"], error["param"], error["message"])
    said = f"logit_bias names token id {token}; this model's vocabulary ends at {VOCABULARY - 1}"
    assert told == (400, "invalid_request", "logit_bias", said)
    assert choice(demo, max_tokens=2, logit_bias={str(VOCABULARY - 1): -1}, ignore_eos=True)["text"]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_deadline_ends_the_rows_in_the_engine(demo: Daemon, streamed: bool) -> None:
    fields: dict[str, Any] = {"max_tokens": 450, "ignore_eos": True, "n": 16}
    answer = post(demo, timeout=0.2, stream=streamed, **fields)
    assert answer.status_code == 200
    assert answer.text.count('"timeout"') == 16
    wait_until(lambda: metric(demo.url, "penstock_engine_running_rows") == 0)
    assert metric(demo.url, "penstock_engine_waiting_rows") == 0
    assert metric(demo.url, "penstock_engine_kv_blocks_used") == 0


def test_a_seed_gives_the_same_text_in_any_company(demo: Daemon) -> None:
    fields: dict[str, Any] = {"seed": 42, "temperature": 1, "max_tokens": 20, "ignore_eos": True}
    alone = choice(demo, **fields)["text"]
    stop = threading.Event()

    def disturb(number: int) -> None:
        while not stop.is_set():
            complete(demo, prompt=f"Number {number}", max_tokens=7 + number, n=3)

    with ThreadPoolExecutor(6) as pool:
        crowd = [pool.submit(disturb, number) for number in range(5)]
        try:
            among = {choice(demo, **fields, priority=priority)["text"] for priority in (-1, 0, 1)}
        finally:
            stop.set()
        assert not [task.result() for task in crowd if task.result()]
    assert among == {alone}
