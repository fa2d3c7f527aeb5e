"""A model with two engines in one API process: who gets a request, and what is seen of a loss."""

import threading
from collections.abc import Iterator

import msgspec
import pytest

from engine_core.messages import Failed
from tests.patience import wait_until
from tests.server.conftest import Deployment, DeploymentBuilder, own_builder
from tests.server.fake_engine import FakeEngine
from tests.server.support import server_config


class Copies:
    """The deployment and its two engines. `cut` ends the second one."""

    def __init__(self, builder: DeploymentBuilder, tokenizer) -> None:
        first = builder.model("writer", "generate")
        config = msgspec.structs.replace(first.engine, max_restarts=3)
        engines = [
            msgspec.structs.replace(
                config,
                execution=msgspec.structs.replace(config.execution, copy=copy),
                client_endpoint=f"{config.client_endpoint}{copy}",
            )
            for copy in (0, 1)
        ]
        model = msgspec.structs.replace(first, engine=engines[0], copies=(engines[1],))
        self._start = lambda: builder.enter_context(
            FakeEngine(engines[1].client_endpoint, tokenizer)
        )
        second = self._start()
        self.deployment: Deployment = builder.open(server_config(model, metrics_alias="vllm"))
        self.engines = [self.deployment.engines["writer"], second]
        wait_until(lambda: self.states() == ["ready", "ready"])

    def states(self) -> list[str]:
        (model,) = self.deployment.http.get("/status").json()["models"]
        return [engine["state"] for engine in model["engines"]]

    def received(self) -> list[int]:
        return [len(engine.received) for engine in self.engines]

    def ask(self, text: str = "a"):
        return self.deployment.http.post("/v1/completions", json={"prompt": text, "max_tokens": 3})

    def restart(self) -> None:
        self.engines[1] = self._start()


@pytest.fixture
def copies(tokenizer) -> Iterator[Copies]:
    with own_builder(tokenizer) as builder:
        yield Copies(builder, tokenizer)


def test_requests_take_turns_and_say_the_same(copies: Copies) -> None:
    answers = [copies.ask().json()["choices"][0]["text"] for _ in range(6)]
    assert len(set(answers)) == 1
    assert copies.received() == [3, 3]


def test_the_one_with_less_to_do_gets_more_and_each_gets_its_aborts(copies: Copies) -> None:
    for engine in copies.engines:
        engine.script.held = True
    http, body = copies.deployment.http, {"prompt": ["a"] * 5, "stream": True}
    with http.stream("POST", "/v1/completions", json=body):
        busy = copies.received().index(1)
        idle = copies.engines[1 - busy]
        for number in range(3):
            with http.stream("POST", "/v1/completions", json={"prompt": "b", "stream": True}):
                wait_until(lambda number=number: len(idle.received) == number + 1)
            wait_until(lambda number=number: len(idle.aborted) == number + 1)
        assert copies.engines[busy].aborted == []
    wait_until(lambda: len(copies.engines[busy].aborted) == 1)


def test_a_request_is_refused_when_all_refuse(copies: Copies) -> None:
    first, second = copies.engines
    refusal = Failed(0, "overloaded", "the queue is long", retry_after=30.0)
    first.script.refusal = refusal
    statuses = [copies.ask().status_code for _ in range(8)]
    assert statuses.count(429) <= 2, "the one that refuses is asked again now and then"
    second.script.refusal = refusal
    while copies.ask().status_code == 200:
        pass
    assert copies.ask().status_code == 429
    first.script.refusal = second.script.refusal = None
    wait_until(lambda: [copies.ask().status_code for _ in range(4)] == [200] * 4)


def test_the_model_serves_while_one_is_lost(copies: Copies) -> None:
    http = copies.deployment.http
    copies.engines[1].script.held = True
    failed: list[int] = []

    def lose() -> None:
        failed.append(copies.ask().status_code)

    asking = [threading.Thread(target=lose) for _ in range(2)]
    for thread in asking:
        thread.start()
    wait_until(lambda: len(copies.engines[1].received) == 1)
    copies.engines[1].kill()
    for thread in asking:
        thread.join()
    assert sorted(failed) == [200, 500]
    assert copies.states() == ["ready", "loading"]
    assert http.get("/status").json()["models"][0]["state"] == "ready"
    assert http.get("/health/ready").status_code == 200
    assert [copies.ask().status_code for _ in range(5)] == [200] * 5
    assert 'penstock_engine_up{copy="1",model="writer"} 0.0' in http.get("/metrics").text
    copies.restart()
    wait_until(lambda: copies.states() == ["ready", "ready"])
    copies.ask()
    assert copies.received()[1] == 1


def test_metrics_are_of_each_copy(copies: Copies) -> None:
    def page() -> str:
        return copies.deployment.http.get("/metrics").text

    copies.ask()
    wait_until(lambda: page().count("penstock_engine_steps_total{") == 2)
    text = page()
    for copy in (0, 1):
        assert f'penstock_engine_up{{copy="{copy}",model="writer"}} 1.0' in text
        assert (
            f'penstock_engine_busy_seconds_total{{copy="{copy}",model="writer",stage="1"}}' in text
        )
        assert f'vllm:num_requests_running{{engine="{copy}",model_name="writer"}} 0.0' in text
    assert 'penstock_generated_tokens_total{model="writer"} 3.0' in text
    assert 'vllm:generation_tokens_total{engine="0",model_name="writer"} 3.0' in text
