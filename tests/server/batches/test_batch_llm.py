"""Jobs from Python: their options, their lines, and their results before a scripted backend."""

import asyncio
import base64
import json
from array import array
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from engine_core.refusal import RefusalError
from server.batches.answering import Answer, Backend, Line, Put
from server.batches.batch_llm import (
    BatchLLM,
    Completions,
    Decisions,
    Embeddings,
    LoopThread,
    Options,
    Prompt,
    Rerankings,
    engine_options,
)
from server.batches.results import Generated, JobStoppedError, RequestError, Sharing
from server.errors import ERRORS, error_body
from server.schemas.decisions import PredicateAnswer

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
        meta = {"api_version": {"version": "1"}, "billed_units": {"search_units": 1}}
        answer = {"id": "", "model": "m", "data": [], "usage": USAGE}
        scores = [{"index": 0, "relevance_score": 0.5}]
        return {**answer, "results": scores, "meta": {**meta, "tokens": {"input_tokens": 7}}}

    odd: Any = object()
    pairs = [("q", ["a"]), ("", ["b"]), ("q", [odd])]
    job = Rerankings({}, pairs, {"top_n": 1})
    good, *refused = await job.run(Scripted(reply), shown=False)
    assert isinstance(good, list)
    assert (good[0].index, good[0].relevance_score) == (0, 0.5)
    assert all(isinstance(each, RequestError) for each in refused)
    assert (job.summary.requests, job.summary.failed) == (3, 2)


LATE = {"type": "predicate", "instructions": "It is late."}
DECIDED = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 1}


def decision(body: dict[str, Any]) -> object:
    if not body["input"]:
        return RefusalError("context_length_exceeded", "no", "questions[0]")
    answers = [{"type": "predicate", "name": None, "probability": 0.25} for _ in body["questions"]]
    details = {"cached_tokens": 4, "cache_write_tokens": 2}
    usage = DECIDED | {"input_tokens_details": details, "total_tokens": 10}
    return {"answers": answers, "model": "m", "usage": usage}


async def test_each_input_has_its_answers_or_its_error() -> None:
    odd: Any = object()
    pairs = [("dam", [LATE, LATE]), ("", [LATE]), (odd, [LATE]), ([{"role": "user"}], [LATE])]
    backend, job = Scripted(decision), Decisions({"model": "m"}, pairs, {"cache_salt": "s"})
    first, refused, wrong, items = await job.run(backend, shown=False)
    assert [body["input"] for body in backend.asked] == ["", "dam", [{"role": "user"}]]
    assert {(body["model"], body["cache_salt"]) for body in backend.asked} == {("m", "s")}
    assert [first, items] == [[PredicateAnswer(name=None, probability=0.25)] * n for n in (2, 1)]
    codes = [each.code for each in (refused, wrong) if isinstance(each, RequestError)]
    assert codes == ["context_length_exceeded", "invalid_request"]
    summary = job.summary
    assert (summary.done, summary.failed) == (4, 2)
    assert (summary.prompt_tokens, summary.saved_tokens, summary.output_tokens) == (18, 8, 2)


@pytest.fixture
def scripted(monkeypatch) -> Generator[tuple[BatchLLM, Scripted]]:
    backend = Scripted(decision)
    with monkeypatch.context() as patched:

        async def opened(_: BatchLLM) -> Backend:
            return backend

        patched.setattr(BatchLLM, "_open", opened)
        with BatchLLM("m", progress=False) as llm:
            yield llm, backend


def test_questions_are_for_all_inputs_or_one_list_for_each(scripted) -> None:
    llm, backend = scripted
    assert [each.probability for each in llm.decide("dam", [LATE, LATE])] == [0.25, 0.25]
    late, later = [LATE], [LATE, LATE]
    for questions, sent in ((later, [2, 2]), ([late, later], [1, 2])):
        backend.asked.clear()
        answers = llm.decide_each(["a", "b"], questions)
        assert [len(body["questions"]) for body in backend.asked] == sent
        assert list(map(len, answers)) == sent
    with pytest.raises(RequestError):
        llm.decide("", [LATE])


@pytest.mark.parametrize(
    ("inputs", "questions", "says"),
    [
        (["a"], [], "questions: is empty"),
        ([], [LATE], "inputs: is empty"),
        ("a", [LATE], "inputs: a list, not one text"),
        (["a"], LATE, "questions: a list, not one text or object"),
        (["a"], [[LATE], [LATE]], "questions: 2 lists for 1 inputs"),
    ],
)
def test_questions_that_no_input_can_have(scripted, inputs, questions, says: str) -> None:
    llm, backend = scripted
    with pytest.raises(ValueError, match=says):
        llm.decide_each(inputs, questions)
    with pytest.raises(ValueError, match="top_n: there is no such option"):
        llm.decide("a", [LATE], top_n=1)
    assert not backend.asked


def bodies(job: Completions) -> list[dict[str, Any]]:
    assert {line.url for line in job.lines} == {"/v1/completions"}
    return [json.loads(line.body) for line in job.lines]


def test_options_are_for_all_or_one_each_behind_the_model_and_the_prompt() -> None:
    each: list[Options] = [{"seed": 1}, {"max_tokens": 5}]
    one, other = bodies(Completions({"model": "m"}, ["a", [1, 2]], each, {"max_tokens": 3}))
    own = {"max_tokens": 3, "seed": 1, "return_token_ids": True}
    assert list(one.items()) == [("model", "m"), ("prompt", "a"), *own.items()]
    assert other == {"model": "m", "prompt": [1, 2], "max_tokens": 5, "return_token_ids": True}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"temperature": 3}, "temperature: expected"),
        ({"structured_outputs": {"grammar": "a"}}, "structured_outputs.grammar is known but not"),
        ({"response_format": {"type": "text", "shape": 1}}, "response_format.shape: is unknown"),
        ({"temprature": 1}, "temprature: there is no such option"),
        ({"stream": True}, "stream: there is no such option"),
        ({"model": "x"}, "model: there is no such option"),
        *[({"top_p": number}, "JSON") for number in (float("nan"), float("inf"), object())],
    ],
)
def test_options_that_are_wrong_for_all_end_the_job_at_once(options, says) -> None:
    with pytest.raises(ValueError, match=says):
        Completions({}, ["a"], options, {})


@pytest.mark.parametrize("option", ["model", "input", "encoding_format", "user", "top_n"])
def test_an_option_of_a_job_is_named(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option}: there is no such option here; there are add"):
        Embeddings({}, ["a"], {option: 1})


def test_what_is_wrong_for_one_prompt_is_in_its_place() -> None:
    odd: Prompt = [{"role": "user"}]  # pyright: ignore[reportAssignmentType]
    each: list[Options] = [{}, {}, {"max_tokens": -1}, {"a": 1}]
    job = Completions({}, ["a", odd, "c", "d"], each, {})
    assert [line.index for line in job.lines] == [0]
    errors = [each for each in job.results if isinstance(each, RequestError)]
    assert {error.code for error in errors} == {"invalid_request"}
    assert [error.param for error in errors] == ["prompt", "max_tokens", "a"]


IDS = np.array([3, 4], np.int32)
OBJECTS: list[tuple[Any, Any]] = [
    ({"prompt": "a"}, "a"),
    ({"prompt": "a", "prompt_token_ids": None, "multi_modal_data": None}, "a"),
    *[({"prompt_token_ids": ids}, [3, 4]) for ids in ([3, 4], (3, 4), IDS, array("i", [3, 4]))],
]


@pytest.mark.parametrize(("prompt", "sent"), OBJECTS)
def test_a_prompt_may_be_in_an_object(prompt: Any, sent: object) -> None:
    job = Completions({}, [prompt, "b"], {}, {})
    assert [body["prompt"] for body in bodies(job)] == [sent, "b"]


@pytest.mark.parametrize(
    ("prompt", "param", "says"),
    [
        ({}, "prompt.prompt_token_ids", "is required without prompt"),
        ({"prompt": "a", "prompt_token_ids": [3]}, "prompt.prompt_token_ids", "not together with"),
        ({"prompt": [3]}, "prompt.prompt", "expected `str | null`"),
        ({"prompt_token_ids": "a"}, "prompt.prompt_token_ids", "expected `array | null`"),
        ({"prompt_token_ids": [3, "a"]}, "prompt.prompt_token_ids[1]", "expected `int`"),
        ({"prompt_token_ids": IDS / 2}, "prompt.prompt_token_ids[0]", "expected `int`"),
        (
            {"prompt": "a", "cache_salt": "s"},
            "prompt.cache_salt",
            "there are prompt, prompt_token_",
        ),
    ],
)
def test_an_object_that_is_no_prompt(prompt: Any, param: str, says: str) -> None:
    (error,) = Completions({}, [prompt], {}, {}).results
    assert isinstance(error, RequestError)
    assert (error.code, error.param) == ("invalid_request", param)
    assert error.message.startswith(f"{param}: ")
    assert says in error.message


def test_what_is_no_list_of_texts_is_refused() -> None:
    """An object would be taken for a list of its keys, a text for one of its letters."""
    llm = BatchLLM("m")
    for given in ("a", {"prompt": "a"}):
        with pytest.raises(ValueError, match="texts: a list, not one text or object"):
            llm.embed(given)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="prompts: a list, not one text or object"):
        llm.generate("a")
    with pytest.raises(RuntimeError, match="works inside its block"):
        llm.generate({"prompt": "a"})


def test_as_many_options_as_prompts() -> None:
    with pytest.raises(ValueError, match="sampling: 1 for 2 prompts"):
        Completions({}, ["a", "b"], [{}], {})


def test_settings_are_those_of_a_model() -> None:
    options = engine_options({"threads": 2, "kv_cache_memory": "64MiB", "stage_layers": [2, 2]})
    assert (options.threads, options.kv_cache_memory, options.stage_layers) == (2, 64 << 20, (2, 2))
    assert options.setting_names["pipeline_stages"] == "pipeline_stages"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"treads": 2}, "treads: there is no such setting"),
        ({"threads": 0}, "threads: "),
        ({"kv_cache_memory": "much"}, "kv_cache_memory: "),
        ({"stall_timeout": 3.0}, "stall_timeout: there is no such setting"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        engine_options(settings)


def test_a_model_or_a_url() -> None:
    with pytest.raises(ValueError, match="model: name a folder"):
        BatchLLM()
    with pytest.raises(ValueError, match="threads: a daemon at a url"):
        BatchLLM(url="http://localhost:8000", threads=1)
    with pytest.raises(ValueError, match="not an address"), BatchLLM(url="localhost"):
        pass
    with pytest.raises(RuntimeError, match="inside its block"):
        BatchLLM(url="http://localhost:8000").generate(["a"])


@pytest.mark.parametrize("after", [False, True])
def test_an_interrupt_while_it_begins_leaves_nothing_at_work(monkeypatch, *, after) -> None:
    """Ctrl-C comes while the coroutine is handed over: before it is, or `after`."""
    entered: list[bool] = []

    async def work() -> None:
        entered.append(True)
        await asyncio.sleep(3600)

    def call_soon(callback: Callable[[], object]) -> None:
        comes = loop.call_soon_threadsafe.call_count == 1
        if after or not comes:
            own.call_soon_threadsafe(callback)
        if comes:
            raise KeyboardInterrupt

    async def others() -> int:
        return len(asyncio.all_tasks()) - 1

    with closing(LoopThread()) as thread:
        own = thread._loop
        loop = Mock(wraps=own, **{"call_soon_threadsafe.side_effect": call_soon})
        with monkeypatch.context() as patched:
            patched.setattr(thread, "_loop", loop)
            with pytest.raises(KeyboardInterrupt):
                thread.run(work())
        assert thread.run(others()) == 0
    assert not entered
