"""The service: system fingerprints, requests in flight, which priorities a request may name."""

import asyncio

import msgspec
import pytest

from server.service.service import InFlight, system_fingerprint
from server.settings.settings import Limits
from tests.engine_core.configs import execution_config
from tests.server.conftest import DeploymentBuilder
from tests.server.support import server_config
from workers.contract.curve import ClusterKeys

CONFIG = execution_config()


@pytest.mark.parametrize(
    ("is_same", "changes"),
    [
        (True, {"worker_endpoint": "ipc:///other"}),
        (True, {"token_endpoint": "ipc:///other"}),
        (True, {"start": "/other"}),
        (True, {"cluster_keys": ClusterKeys.of(b"a secret of a cluster")}),
        (True, {"kv_cache_bytes": CONFIG.kv_cache_bytes + 1}),
        (True, {"log_level": "debug"}),
        (False, {"dtype": "bfloat16"}),
        (False, {"devices": ("cpu", "cpu")}),
        (False, {"attention_backend": "naive"}),
        (False, {"model": msgspec.structs.replace(CONFIG.model, path="/other")}),
    ],
)
def test_only_another_computation_has_another_fingerprint(is_same, changes) -> None:
    other = msgspec.structs.replace(CONFIG, **changes)
    assert other != CONFIG
    assert (system_fingerprint(other) == system_fingerprint(CONFIG)) == is_same


def test_another_release_has_another(monkeypatch: pytest.MonkeyPatch) -> None:
    before = system_fingerprint(CONFIG)
    monkeypatch.setattr("server.service.service.__version__", "99.0")
    assert system_fingerprint(CONFIG) != before


def test_what_fails_is_no_longer_in_flight() -> None:
    counts: list[int] = []
    in_flight = InFlight(counts.append)
    with pytest.raises(ZeroDivisionError), in_flight, in_flight:
        raise ZeroDivisionError
    assert counts == [1, 2, 1, 0]


async def test_empty_waits_for_the_last_to_leave() -> None:
    in_flight = InFlight(lambda _: None)
    assert await in_flight.empty(0.01)
    with in_flight:
        with in_flight:
            assert not await in_flight.empty(0.01)
            waiting = asyncio.create_task(in_flight.empty(5))
        await asyncio.sleep(0)
        assert not waiting.done()
    assert await waiting


REQUESTS = {
    "/v1/completions": {"model": "writer", "prompt": "The", "max_tokens": 1},
    "/v1/embeddings": {"model": "embedder", "input": "The"},
    "/v1/rerank": {"model": "ranker", "query": "The", "documents": ["fox"]},
    "/v1/score": {"model": "ranker", "text_1": "The", "text_2": "fox"},
    "/v1/classify": {"model": "ranker", "input": "The"},
}


@pytest.mark.parametrize(
    ("allowed", "taken", "refused", "named"),
    [
        (None, [0, None], [-1, 1], "--priority-range"),
        ((-2, 1), [-2, 0, 1], [-3, 2], "from -2 to 1"),
    ],
)
def test_a_priority_outside_the_range_is_refused(
    builder: DeploymentBuilder, allowed, taken, refused, named
) -> None:
    limits = Limits(priority_range=allowed)
    deployment = builder.open(server_config(*builder.models(), limits=limits))
    for path, body in REQUESTS.items():
        for priority in taken:
            assert deployment.post(path, {**body, "priority": priority}).status_code == 200, path
        for priority in refused:
            answer = deployment.post(path, {**body, "priority": priority})
            assert answer.status_code == 400, path
            error = answer.json()["error"]
            assert (error["code"], error["param"]) == ("invalid_request", "priority")
            assert named in error["message"]
