"""Pipelines of several stages and several API processes give the answers of one."""

import json
import os
import signal
from collections.abc import Iterable

import httpx
import numpy as np
import pytest

from server.demo import EMBEDDER_NAME, GENERATOR_NAME, demo_models
from tests.e2e.api.test_structured import COLOURS, JSON_SCHEMA, PROMPT, VERSION
from tests.e2e.daemon import Daemon, metric, running
from tests.patience import wait_until

BODIES = [
    {"model": GENERATOR_NAME, "prompt": prompt, "max_tokens": 40, "ignore_eos": True} | sampling
    for prompt in ("The function returns", "In this case, the interpreter will")
    for sampling in ({"temperature": 0}, {"temperature": 0.9, "top_p": 0.9, "seed": 3, "n": 3})
]
COUNTED = {
    "seed": 11, "min_p": 0.02, "presence_penalty": 0.3, "frequency_penalty": 0.4,
    "repetition_penalty": 1.1, "logit_bias": {"394": -3.5, "1141": 2},
}  # fmt: skip
"""The last stage counts tokens; the requests' own order of steps must not matter."""
FORMS = [
    BODIES[0] | {"prompt": PROMPT, "max_tokens": 200, "ignore_eos": False} | form
    for form in (
        {"response_format": JSON_SCHEMA, "temperature": 1, "seed": 4, "n": 3},
        {"regex": VERSION},
        {"choice": COLOURS, "temperature": 1, "seed": 9},
    )
]
TEXTS = [f"Sentence number {i} " + "is long " * (i * 7 % 40) for i in range(30)]


def texts(daemon: Daemon, bodies: Iterable[object] = BODIES) -> list[list[str]]:
    answers = [httpx.post(f"{daemon.url}/v1/completions", json=b, timeout=60) for b in bodies]
    return [[choice["text"] for choice in answer.json()["choices"]] for answer in answers]


def vectors(daemon: Daemon) -> np.ndarray:
    body = {"model": EMBEDDER_NAME, "input": TEXTS}
    answer = httpx.post(f"{daemon.url}/v1/embeddings", json=body, timeout=60)
    return np.array([item["embedding"] for item in answer.json()["data"]])


def test_a_pipeline_gives_the_answers_of_one_stage(demo: Daemon, pipeline: Daemon) -> None:
    check_pipeline(pipeline, 2, demo)
    others = [BODIES[0] | COUNTED, *FORMS]
    assert texts(pipeline, others) == texts(demo, others)


@pytest.mark.long
def test_a_long_pipeline_gives_the_answers_of_one_stage(demo: Daemon) -> None:
    with running("--pipeline-stages", "4", "--threads", "1") as daemon:
        check_pipeline(daemon, 4, demo)


def check_pipeline(daemon: Daemon, stages: int, demo: Daemon) -> None:
    assert len(daemon.children()["workers"]) == 2 * stages
    assert texts(daemon) == texts(demo)
    np.testing.assert_allclose(vectors(daemon), vectors(demo), atol=1e-6)


@pytest.mark.long
def test_a_pipeline_that_is_divided_and_scheduled_as_asked(demo: Daemon) -> None:
    arguments = (
        f"{demo_models()[GENERATOR_NAME]} --served-model-name {GENERATOR_NAME} --threads 1 "
        "--pipeline-stages 3 --stage-layers 1,3,1 --steps-ahead 0 --transport gloo"
    )
    with running(*arguments.split()) as daemon:
        assert len(daemon.children()["workers"]) == 3
        assert any("3 stages of 1 thread with 1,3,1 layers" in line for line in daemon.log)
        assert texts(daemon) == texts(demo)


def test_several_api_processes_share_the_port_the_metrics_and_standard_output(
    demo: Daemon, capfd: pytest.CaptureFixture[str]
) -> None:
    with running("--api-workers", "2", "--threads", "1", "--access-log", "json") as daemon:
        assert len(daemon.children()["server.daemon.api_process"]) == 2
        assert texts(daemon) == texts(demo)
        for _ in range(20):
            assert httpx.get(f"{daemon.url}/v1/models").status_code == 200
        name = "penstock_http_requests_total"
        wait_until(lambda: metric(daemon.url, name, endpoint="/v1/completions") == len(BODIES))
        os.kill(daemon.pid, signal.SIGTERM)
        assert daemon.exit_code() == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert len([line for line in lines if line["path"] == "/v1/models"]) == 20
    texts_asked = [line for line in lines if line["path"] == "/v1/completions"]
    assert len(texts_asked) == len(BODIES)
    for line in texts_asked:
        assert (line["status"], line["output_tokens"] % 40) == (200, 0)
        assert 0 < line["queue_seconds"] < line["first_token_seconds"] < line["total_seconds"]
