"""The daemon as a new user meets it: demo models, curl's bodies, the SDKs people have."""

import base64
import re
import shlex
import subprocess
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cohere
import httpx
import numpy as np
import openai
import pytest
import torch

from server.demo import EMBEDDER_NAME, GENERATOR_NAME, demo_models
from tests.e2e.daemon import Daemon, metric
from tests.patience import wait_until

PROMPT = "The function returns"
TEXTS = ["The cat sat on the mat.", "A kitten rests on a rug.", "Interest rates rose in March."]


@pytest.fixture(scope="module")
def client(demo: Daemon) -> Generator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def reference() -> tuple[Any, Any]:
    """Transformers' model and tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = demo_models()[GENERATOR_NAME]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def greedy(reference: tuple[Any, Any]) -> tuple[str, list[int]]:
    """What transformers' generate says after PROMPT, greedily, 24 tokens."""
    model, tokenizer = reference
    inputs = tokenizer(PROMPT, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=24, min_new_tokens=24, do_sample=False)
    ids = output[0, inputs["input_ids"].shape[1] :].tolist()
    return tokenizer.decode(ids, skip_special_tokens=True), ids


def completed(client: openai.OpenAI, **fields: Any) -> Any:
    """24 tokens after PROMPT, greedily."""
    return client.completions.create(
        model=GENERATOR_NAME, prompt=PROMPT, max_tokens=24, temperature=0,
        extra_body={"ignore_eos": True}, **fields,
    )  # fmt: skip


def test_the_curl_lines_of_the_ready_message_work(demo: Daemon) -> None:
    text = "".join(demo.log).replace("\\\n", "")
    commands = [line for line in text.splitlines() if line.strip().startswith("curl")]
    assert len(commands) == 4
    for command in commands:
        answer = subprocess.run(shlex.split(command), capture_output=True, text=True, check=True)
        assert '"error"' not in answer.stdout
        assert '"model":' in answer.stdout


def test_models_lists_the_generator_first(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [GENERATOR_NAME, EMBEDDER_NAME]


def test_greedy_text_is_that_of_transformers(client: openai.OpenAI, greedy) -> None:
    answer = completed(client)
    assert answer.choices[0].text == greedy[0]
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 24


def test_a_stream_joins_to_the_same_text_and_reports_usage(client: openai.OpenAI, greedy) -> None:
    chunks = list(completed(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == greedy[0]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 24


def test_logprobs_are_those_of_transformers(client: openai.OpenAI, greedy, reference) -> None:
    model, tokenizer = reference
    everything = tokenizer(PROMPT)["input_ids"] + greedy[1]
    with torch.inference_mode():
        logits = model(torch.tensor([everything])).logits[0].float()
    assert logits.std() >= 1
    expected = logits.log_softmax(-1)[range(len(everything) - 1), everything[1:]]
    first, *told = completed(client, logprobs=2, echo=True).choices[0].logprobs.token_logprobs
    assert first is None
    np.testing.assert_allclose(told, expected, atol=1e-4)


def test_choices_differ_and_a_seed_repeats_them(client: openai.OpenAI) -> None:
    def texts() -> list[str]:
        answer = client.completions.create(
            model=GENERATOR_NAME, prompt=PROMPT, max_tokens=16, temperature=1.0, n=4, seed=5
        )
        return [choice.text for choice in answer.choices]

    first = texts()
    assert len(set(first)) > 1
    assert texts() == first


def test_a_stop_string_cuts_the_text(client: openai.OpenAI, greedy) -> None:
    stop = greedy[0][10:14]
    choice = completed(client, stop=[stop]).choices[0]
    assert choice.text == greedy[0][: greedy[0].index(stop)]
    assert choice.finish_reason == "stop"


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_vectors_are_those_of_sentence_transformers(client: openai.OpenAI, encoding) -> None:
    from sentence_transformers import SentenceTransformer

    expected = SentenceTransformer(str(demo_models()[EMBEDDER_NAME]), device="cpu").encode(TEXTS)
    answer = client.embeddings.create(model=EMBEDDER_NAME, input=TEXTS, encoding_format=encoding)
    vectors = np.array([
        np.frombuffer(base64.b64decode(item.embedding), np.float32)
        if isinstance(item.embedding, str) else item.embedding
        for item in answer.data
    ])  # fmt: skip
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 3


def test_cohere_reranks(demo: Daemon) -> None:
    with httpx.Client() as connection:
        client = cohere.Client(api_key="none", base_url=demo.url, httpx_client=connection)
        answer = client.rerank(
            model=EMBEDDER_NAME, query="Where does the cat sleep?", documents=TEXTS, top_n=2
        )
    scores = [result.relevance_score for result in answer.results]
    assert scores == sorted(scores, reverse=True)
    assert {result.index for result in answer.results} == {0, 1}
    assert all(-1 <= score <= 1 for score in scores)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "x", "max_tokens": 5000, "stream": True}, "max_tokens"),
        ("/v1/completions", {"prompt": "x", "n": 10_000}, "n"),
        ("/v1/embeddings", {"input": "word " * 300}, "input"),
        ("/v1/rerank", {"query": "x", "documents": ["x"] * 100_000}, "documents"),
        ("/v1/rerank", {"query": "x", "documents": ["ok", "word " * 300]}, "documents[1]"),
    ],
)
def test_what_is_too_long_is_named(demo: Daemon, path: str, body: dict, param: str) -> None:
    """Before a stream begins. Other faults are found without an engine."""
    answer = httpx.post(demo.url + path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    if body.get("stream"):
        assert {"1024", "5000"} <= set(re.findall(r"\d+", error["message"]))


def test_a_client_that_leaves_is_aborted_and_its_blocks_freed(demo: Daemon) -> None:
    body = {"prompt": PROMPT, "max_tokens": 1000, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{demo.url}/v1/completions", json=body) as answer:
        lines = answer.iter_lines()  # held: httpx closes the connection with its iterator
        next(lines)
        wait_until(lambda: metric(demo.url, "penstock_engine_running_rows") > 0)
    wait_until(lambda: metric(demo.url, "penstock_engine_kv_blocks_used") == 0)


def test_many_requests_at_once_all_get_their_own_answer(demo: Daemon) -> None:
    prompts = [f"The value {i} is" for i in range(40)]

    def text(prompt: str) -> str:
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        return demo.ask("/v1/completions", **body)["choices"][0]["text"]

    alone = [text(prompt) for prompt in prompts[:4]]
    with ThreadPoolExecutor(40) as pool:
        assert list(pool.map(text, prompts))[:4] == alone


def test_processes_are_named_and_light(demo: Daemon) -> None:
    """One engine and worker a model; neither the server nor the engine core ever loads torch."""
    children = demo.children()
    assert {name: len(pids) for name, pids in children.items()} == {
        "engine_core": 2, "workers": 2, "server.daemon.api_process": 1,
        "server.batches.batch_process": 1,
    }  # fmt: skip
    for pid in children["engine_core"] + children["server.daemon.api_process"]:
        assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
        status = Path(f"/proc/{pid}/status").read_text()
        resident = int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0])
        assert resident <= 150 * 1024
