"""`GET /status`: the daemon's state for the status page, and for programs."""

import subprocess
import sys
from pathlib import Path

import msgspec

from server import __version__
from server.observe.processes import BatchState
from server.schemas.status import Status
from tests.patience import wait_until
from tests.server.fake_engine import STAGE_TIMES
from tests.server.support import server_config


def status(deployment) -> Status:
    """Every field is one of the schema's."""
    answer = deployment.http.get("/status")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    decoder = msgspec.json.Decoder(Status, strict=True)
    found = decoder.decode(answer.content)
    assert msgspec.to_builtins(found) == answer.json()
    return found


def test_the_models(deployment) -> None:
    found = status(deployment)
    assert found.version == __version__
    assert not found.draining
    assert [(model.name, model.task) for model in found.models] == [
        ("writer", "generate"),
        ("embedder", "embed"),
        ("ranker", "classify"),
    ]
    assert {model.state for model in found.models} == {"ready"}
    assert {model.max_model_len for model in found.models} == {2048}
    assert "/v1/chat/completions" in found.models[0].endpoints
    assert "/v1/rerank" in found.models[2].endpoints


def test_the_engines_last_heartbeat(deployment) -> None:
    wait_until(lambda: "steps" in status(deployment).models[0].engines[0].values)
    (engine,) = status(deployment).models[0].engines
    assert (engine.values["kv_blocks_used"], engine.values["kv_blocks"]) == (1, 16)
    assert engine.values["running_rows"] == 0
    told = [(stage["busy_seconds"], stage["waiting_seconds"]) for stage in engine.stages]
    assert told == [(stage.busy_s, stage.waiting_s) for stage in STAGE_TIMES]


def test_counts_grow_with_what_is_answered(deployment, say) -> None:
    ids = say("The quick brown fox")
    before = status(deployment)
    deployment.post("/v1/completions", {"prompt": "Hello"})

    def grown() -> tuple[int, ...]:
        now = status(deployment)
        old, new = before.models[0], now.models[0]
        return (
            new.prompt_tokens - old.prompt_tokens,
            new.generated_tokens - old.generated_tokens,
            sum(new.first_token.counts) - sum(old.first_token.counts),
            answers(now) - answers(before),
        )

    wait_until(lambda: grown() == (5, len(ids) + 1, 1, 1))
    now = status(deployment)
    assert len(now.models[0].first_token.counts) == len(now.models[0].first_token.bounds) + 1
    assert now.clock_seconds > before.clock_seconds
    assert now.in_flight.requests == 0


def answers(found: Status) -> int:
    return sum(
        one.count for one in found.answers if (one.endpoint, one.status) == ("/v1/completions", 200)
    )


def test_what_is_in_flight(deployment) -> None:
    deployment.engines["writer"].script.held = True
    with deployment.http.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}):
        wait_until(lambda: status(deployment).in_flight.requests == 1)
        wait_until(lambda: status(deployment).in_flight.rows == 1)
        deployment.engines["writer"].script.held = False
    wait_until(lambda: status(deployment).in_flight.requests == 0)


def test_models_load_and_die_and_a_daemon_drains(builder) -> None:
    models = [builder.model(name, "generate") for name in ("early", "late")]
    deployment = builder.open(server_config(*models, drain_timeout=20), ready=False)
    early, late = deployment.engines.values()

    def states() -> list[str]:
        return [model.state for model in status(deployment).models]

    loading = [(model.state, model.engines[0].values) for model in status(deployment).models]
    assert loading == [("loading", {"up": 0.0})] * 2
    early.script.ready = True
    wait_until(lambda: states() == ["ready", "loading"])
    early.kill()
    late.script.ready = late.script.held = True
    wait_until(lambda: states() == ["stopped", "ready"])
    body = {"model": "late", "prompt": "a", "stream": True}
    with deployment.http.stream("POST", "/v1/completions", json=body):
        deployment.api.drain()
        wait_until(lambda: status(deployment).draining)


def test_it_says_whether_batches_run(builder, tmp_path: Path) -> None:
    file = tmp_path / "batches.state"
    config = server_config(builder.model("writer", "generate"))
    deployment = builder.open(msgspec.structs.replace(config, batch_file=str(file)))

    def shown() -> tuple[str | None, bool]:
        page = deployment.http.get("/metrics").text
        return status(deployment).batches, "penstock_batch_process_up 1.0" in page

    assert shown() == ("waiting", False), "there is no such process"
    state = BatchState(file)
    assert shown() == ("waiting", False), "it cannot run yet"
    state.set(runs=True)
    assert shown() == ("running", True)
    state.set(runs=False)
    assert shown() == ("waiting", False)

    ended = "from pathlib import Path; from server.observe.processes import BatchState; "
    ended += f"BatchState(Path({str(file)!r})).set(runs=True)"
    subprocess.run([sys.executable, "-c", ended], check=True)
    assert shown() == ("waiting", False), "it has died"


def test_where_there_are_to_be_no_batches_nothing_is_said_of_them(deployment) -> None:
    assert status(deployment).batches is None
    assert "batch_process_up" not in deployment.http.get("/metrics").text
