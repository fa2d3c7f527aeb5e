"""Jobs from Python, and their ends: on an engine of one's own, and on a running daemon."""

import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest

from engine_core.tokenization.tokenizer import Tokenizer
from server.batches.batch_llm import BatchLLM
from server.batches.results import Generated, GenerateResult, RequestError
from server.demo import EMBEDDER_NAME, GENERATOR_NAME, demo_models
from server.schemas.decisions import ChoiceAnswer, PredicateAnswer
from tests.e2e.daemon import Daemon, children_of, is_alive
from tests.patience import PATIENCE, wait_until

SYSTEM = "Gate: water falls from the gate into the turbine below, and the turbine turns. " * 8
PROMPTS = [f"{SYSTEM}Question {number}: why?" for number in range(12)]
TOO_LONG = "water " * 3_000
OPTIONS = [{"value": "dam"}, {"value": "gate"}]


@pytest.fixture(scope="module")
def generator() -> Generator[BatchLLM]:
    folder = demo_models()[GENERATOR_NAME]
    with BatchLLM(str(folder), threads=1, block_size=32, progress=False) as llm:
        yield llm


@pytest.fixture(scope="module")
def embedder() -> Generator[BatchLLM]:
    with BatchLLM(str(demo_models()[EMBEDDER_NAME]), threads=1, progress=False) as llm:
        yield llm


def good(result: GenerateResult) -> Generated:
    assert isinstance(result, Generated)
    return result


def test_shared_prefixes_are_computed_once_to_the_token(generator: BatchLLM) -> None:
    results = generator.generate(PROMPTS, max_tokens=4, temperature=0, cache_salt="by token")
    cached = [good(result).cached_tokens for result in results]
    assert sum(count == 0 for count in cached) == 1, "the first of the group"
    shared = max(cached)
    assert shared % 32, "not by whole blocks"
    assert cached.count(shared) == len(PROMPTS) - 1
    assert generator.summary.sharing == "by token"
    assert generator.summary.saved_tokens == sum(cached)
    assert generator.summary.saved_share > 0.8


def test_a_bad_prompt_has_its_error_in_its_place(generator: BatchLLM) -> None:
    prompts = ["one", TOO_LONG, [], [10**7], "\ud800", "two"]
    results = generator.generate(prompts, max_tokens=2, ignore_eos=True)
    codes = [each.code if isinstance(each, RequestError) else None for each in results]
    bad = "invalid_request"
    assert codes == [None, "context_length_exceeded", bad, bad, bad, None]
    assert sorted(generator.errors) == [1, 2, 3, 4]
    assert (generator.summary.requests, generator.summary.failed) == (6, 4)


def test_every_form_of_a_prompt_is_the_same_prompt(generator: BatchLLM) -> None:
    (encoded,) = Tokenizer.load(demo_models()[GENERATOR_NAME]).encode(["The dam"])
    ids = np.frombuffer(encoded, np.int32)
    forms = ["The dam", {"prompt": "The dam"}, ids.tolist(), {"prompt_token_ids": ids}]
    results = generator.generate(forms, max_tokens=4, temperature=0)
    results += generator.generate({"prompt": "The dam"}, max_tokens=4, temperature=0)
    assert len({good(result).text for result in results}) == 1


def test_members_of_a_group_may_ask_for_different_things(generator: BatchLLM) -> None:
    each = [
        {"n": 2, "temperature": 1.0, "seed": 3},
        {"n": 2, "temperature": 1.0, "seed": 4},
        {"structured_outputs": {"choice": ["because", "why not"]}},
        {"max_tokens": 0, "echo": True},
        {"prompt_logprobs": 0},
        {"temperature": 0, "repetition_penalty": 1.3},
        {"max_tokens": 2, "ignore_eos": True, "logprobs": 1},
    ]
    options: list[dict[str, object]] = [{"max_tokens": 5, "temperature": 0, **one} for one in each]
    prompts = PROMPTS[: len(options)]
    together = list(map(good, generator.generate(prompts, options, cache_salt="group")))
    for prompt, own, result in zip(prompts, options, together, strict=True):
        (alone,) = generator.generate([prompt], own, cache_salt="alone")
        texts = [choice.text for choice in good(alone).choices]
        assert [choice.text for choice in result.choices] == texts
        assert result.usage.prompt_tokens == good(alone).usage.prompt_tokens
    assert together[2].text in ("because", "why not")
    assert together[3].text == prompts[3]
    assert together[5].logprobs is None
    scored = together[6].logprobs
    assert scored is not None
    assert len(scored.token_logprobs) == 2
    assert generator.summary.failed == 0


def test_scores_of_prompts_are_those_of_the_api(generator: BatchLLM) -> None:
    (result,) = generator.generate([[9] * 900], max_tokens=1, echo=True, prompt_logprobs=20)
    choice = good(result).choices[0]
    assert isinstance(choice.prompt_logprobs, list)
    first, *entries = choice.prompt_logprobs
    assert first is None
    assert len(entries) == good(result).usage.prompt_tokens - 1
    assert all(entry is not None and len(entry) in (20, 21) for entry in entries)


def test_an_empty_job_and_the_wrong_model_are_refused(
    generator: BatchLLM, embedder: BatchLLM
) -> None:
    for empty in (generator.generate, generator.embed):
        with pytest.raises(ValueError, match="is empty"):
            empty([])
    with pytest.raises(RuntimeError, match="no model of this daemon serves /v1/completions"):
        embedder.generate(["a"])
    with pytest.raises(RuntimeError, match="no model of this daemon serves /v1/embeddings"):
        generator.embed(["a"])


def test_vectors_come_in_order_and_a_bad_text_is_nan(embedder: BatchLLM) -> None:
    texts = [f"text number {number}" for number in range(150)]
    texts[70] = ""
    vectors = embedder.embed(texts)
    assert vectors.shape == (150, 384)
    assert np.flatnonzero(np.isnan(vectors).any(axis=1)).tolist() == [70] == list(embedder.errors)
    np.testing.assert_allclose(embedder.embed([texts[149]])[0], vectors[149], atol=1e-5)
    assert embedder.embed(texts[:2], normalize=False).shape == (2, 384)


def test_documents_are_ranked(embedder: BatchLLM) -> None:
    documents = ["Paris is the capital of France.", "The giant panda lives on bamboo."]
    best, other = embedder.rerank("What do pandas eat?", documents)
    assert (best.index, other.index) == (1, 0)
    many = embedder.rerank_each(["What do pandas eat?", "", "France"], [documents] * 3)
    assert isinstance(many[1], RequestError)
    assert many[0] == [best, other]
    assert isinstance(many[2], list)
    assert many[2][0].index == 0
    with pytest.raises(RequestError):
        embedder.rerank("", documents)


def test_questions_are_answered_by_probabilities(generator: BatchLLM) -> None:
    choice = {"type": "choice", "instructions": "Which?", "choices": OPTIONS}
    questions = [{"type": "predicate", "instructions": "Water falls."}, choice]
    alone = generator.decide(SYSTEM, questions, cache_salt="alone")
    assert isinstance(alone[0], PredicateAnswer)
    assert isinstance(alone[1], ChoiceAnswer)
    assert sum(each.probability for each in alone[1].probabilities) == pytest.approx(1)
    inputs = [SYSTEM, TOO_LONG, f"{SYSTEM} It stops."]
    first, refused, last = generator.decide_each(inputs, questions, cache_salt="each")
    assert isinstance(refused, RequestError)
    assert (refused.code, refused.param) == ("context_length_exceeded", "questions[0]")
    assert isinstance(last, list)
    assert isinstance(first, list)
    assert isinstance(first[0], PredicateAnswer)
    assert first[0].probability == pytest.approx(alone[0].probability, abs=1e-5)
    assert generator.summary.failed == 1
    assert generator.summary.output_tokens == 4
    assert 0 < generator.summary.saved_share < 1


def test_a_daemon_gives_the_same(generator: BatchLLM, embedder: BatchLLM, demo: Daemon) -> None:
    prompts = [*PROMPTS, TOO_LONG, "\ud800"]
    with BatchLLM(GENERATOR_NAME, url=demo.url, progress=False) as remote:
        theirs = remote.generate(prompts, max_tokens=4, temperature=0)
        assert remote.summary.sharing == "by whole blocks"
        assert remote.summary.failed == 2
        assert remote.summary.saved_share > 0.3
    ours = generator.generate(prompts, max_tokens=4, temperature=0)
    for one, other in zip(ours[:-2], theirs[:-2], strict=True):
        assert good(one).token_ids == good(other).token_ids
    with BatchLLM(EMBEDDER_NAME, url=demo.url, progress=False) as remote:
        np.testing.assert_allclose(
            remote.embed(["a", "b c"]), embedder.embed(["a", "b c"]), atol=1e-5
        )


FOLDER = str(demo_models()[GENERATOR_NAME])
JOB = f"""
from server.batches import BatchLLM
with BatchLLM({FOLDER!r}, threads=1) as llm:
    print("ready", flush=True)
    llm.generate(["Water"] * 2000, max_tokens=900, ignore_eos=True)
"""


def test_ctrl_c_leaves_no_process() -> None:
    script = subprocess.Popen(
        [sys.executable, "-c", JOB], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert script.stdout is not None
        assert script.stdout.readline() == "ready\n"
        children = [pid for pids in children_of(script.pid).values() for pid in pids]
        assert len(children) == 2, "an engine and its worker"
        script.send_signal(signal.SIGINT)
        _, said = script.communicate(timeout=PATIENCE)
    finally:
        script.kill()
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert not any(map(is_alive, children))


def test_a_model_that_is_not_there_leaves_no_thread(tmp_path: Path) -> None:
    threads = threading.active_count()
    with pytest.raises(ValueError, match=r"config\.json"), BatchLLM(str(tmp_path)):
        pass
    wait_until(lambda: threading.active_count() == threads)
