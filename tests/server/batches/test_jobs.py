"""Jobs from Python before a backend that a test has made."""

import base64
import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from engine_core.refusal import RefusalError
from server.batches.answering import Answer, Backend, Line, Put
from server.batches.batch_llm import Completions, Embeddings, Rerankings
from server.batches.results import Generated, JobStoppedError, RequestError, Sharing
from server.errors import ERRORS, error_body

USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 2,
    "total_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 3},
}


class Scripted(Backend):
    """Answers the body of each line with what `reply` makes of it, in the order of lines."""

    sharing: Sharing = "by whole blocks"

    def __init__(self, reply: Callable[[dict[str, Any]], object]) -> None:
        self.asked: list[dict[str, Any]] = []
        self._reply = reply

    async def answer(self, lines: Iterable[Line], put: Put) -> None:
        for line in lines:
            body = json.loads(line.body)
            self.asked.append(body)
            reply = self._reply(body)
            if isinstance(reply, RefusalError):
                put(line, Answer(ERRORS[reply.code].status, "r", error_body(reply)))
            else:
                put(line, Answer(200, "r", json.dumps(reply).encode()))


def completion(body: dict[str, Any]) -> object:
    if body["prompt"] == "bad":
        return RefusalError("too_large", "no", "prompt")
    choice = {"index": 0, "text": body["prompt"] + "!", "logprobs": None, "finish_reason": "stop"}
    names = {"id": "", "created": 0, "model": "m", "system_fingerprint": "f"}
    return {**names, "choices": [{**choice, "prompt_token_ids": [1]}], "usage": USAGE}


async def test_prompts_go_in_order_and_results_come_in_the_callers() -> None:
    odd: Any = [{}]
    prompts = ["dam", odd, "bad", "a", "b"]
    backend, job = Scripted(completion), Completions({}, prompts, {}, {})
    results = await job.run(backend, shown=False)
    assert [body["prompt"] for body in backend.asked] == ["a", "b", "bad", "dam"]
    good = [each.text if isinstance(each, Generated) else each.code for each in results]
    assert good == ["dam!", "invalid_request", "too_large", "a!", "b!"]
    assert all(
        each.choices[0].prompt_token_ids != [1] for each in results if isinstance(each, Generated)
    )
    summary = job.summary
    assert (summary.requests, summary.done, summary.failed) == (5, 5, 2)
    assert (summary.prompt_tokens, summary.output_tokens, summary.saved_tokens) == (21, 6, 9)
    assert summary.sharing == "by whole blocks"
    assert summary.requests_per_s > 0


async def test_a_stop_leaves_what_is_done() -> None:
    def reply(body: dict[str, Any]) -> object:
        if body["prompt"] == "c":
            return RefusalError("model_not_found", "there is no model m")
        return completion(body)

    job = Completions({}, ["c", "a", "bad"], {}, {})
    with pytest.raises(JobStoppedError, match="there is no model m") as raised:
        await job.run(Scripted(reply), shown=False)
    lost, done, refused = raised.value.results
    assert lost is None
    assert isinstance(done, Generated)
    assert isinstance(refused, RequestError)


async def test_an_answer_without_usage_is_no_penstocks() -> None:
    def reply(body: dict[str, Any]) -> object:
        return {**completion({"prompt": ""}), "usage": None}  # pyright: ignore[reportGeneralTypeIssues]

    with pytest.raises(JobStoppedError, match="no penstock"):
        await Completions({}, ["a"], {}, {}).run(Scripted(reply), shown=False)


def vectors(body: dict[str, Any]) -> object:
    if "bad" in body["input"]:
        return RefusalError("context_length_exceeded", "too long", "input")
    data = [np.full(2, len(item), np.float32).tobytes() for item in body["input"]]
    entries = [
        {"index": index, "object": "embedding", "embedding": base64.b64encode(each).decode()}
        for index, each in enumerate(data)
    ]
    usage = {"prompt_tokens": len(entries), "total_tokens": len(entries)}
    return {"object": "list", "model": "m", "data": entries, "usage": usage}


async def test_the_texts_of_a_refused_line_are_asked_for_alone() -> None:
    odd: Any = 5
    texts: list[Any] = [f"{'x' * (number % 5)}" for number in range(70)]
    texts[3:5] = ["bad", odd]
    backend, job = Scripted(vectors), Embeddings({"model": "m"}, texts, {"normalize": False})
    results = await job.run(backend, shown=False)
    sizes = [len(body["input"]) for body in backend.asked]
    assert sizes == [64, 5, *[1] * 64], "whole lines first"
    assert {body["model"] for body in backend.asked} == {"m"}
    assert not any(body["normalize"] for body in backend.asked)
    codes = [each.code if isinstance(each, RequestError) else None for each in results]
    assert codes[3:5] == ["context_length_exceeded", "invalid_request"]
    assert codes.count(None) == 68
    for text, vector in zip(texts, results, strict=True):
        assert isinstance(vector, RequestError) or vector.tolist() == [len(text)] * 2
    assert (job.summary.failed, job.summary.prompt_tokens) == (2, 68)


async def test_texts_and_token_ids_are_not_in_one_line() -> None:
    texts: list[Any] = ["a", [1, 2], np.array([3], np.int32), "b"]
    backend = Scripted(vectors)
    await Embeddings({}, texts, {}).run(backend, shown=False)
    assert [body["input"] for body in backend.asked] == [["a"], [[1, 2], [3]], ["b"]]


async def test_each_query_has_its_ranking_or_its_error() -> None:
    def reply(body: dict[str, Any]) -> object:
        if not body["query"]:
            return RefusalError("invalid_request", "no", "query")
        scores = [{"index": 0, "relevance_score": 0.5}]
        return {
            "id": "",
            "model": "m",
            "results": scores,
            "data": [],
            "meta": {
                "api_version": {"version": "1"},
                "billed_units": {"search_units": 1},
                "tokens": {"input_tokens": 7},
            },
            "usage": USAGE,
        }

    odd: Any = object()
    pairs = [("q", ["a"]), ("", ["b"]), ("q", [odd])]
    job = Rerankings({}, pairs, {"top_n": 1})
    good, *refused = await job.run(Scripted(reply), shown=False)
    assert isinstance(good, list)
    assert (good[0].index, good[0].relevance_score) == (0, 0.5)
    assert all(isinstance(each, RequestError) for each in refused)
    assert (job.summary.requests, job.summary.failed) == (3, 2)
