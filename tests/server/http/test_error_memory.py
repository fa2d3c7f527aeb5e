"""What a refused request has sent is free when it is answered: the garbage collector comes late."""

import os
from pathlib import Path

import pytest

from engine_core.messages import Failed
from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.support import server_config

BODY = {"prompt": "x" * (7 << 20)}
FEW, MANY = 3, 25
"""Requests: together the many send 175 MB, and the collector does not come so soon."""
MOST_MB = 120


@pytest.fixture(scope="module")
def writer(module_builder: DeploymentBuilder) -> Deployment:
    return module_builder.open(server_config(module_builder.model("writer", "generate")))


def resident_mb(deployment: Deployment) -> float:
    statm = Path(f"/proc/{deployment.api.process.pid}/statm").read_text()
    return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"model": "nobody"}, 404), ({"max_tokens": -1}, 400), ({}, 400)],
    ids=["no model", "a field", "the engine"],
)
def test_many_refused_requests_take_no_more_memory_than_few(writer, fields, status):
    body = BODY | fields
    writer.engines["writer"].script.refusal = Failed(0, "context_length_exceeded", "no", "prompt")

    def ask(times: int) -> None:
        for _ in range(times):
            assert writer.post("/v1/completions", body).status_code == status

    ask(FEW)
    before = resident_mb(writer)
    ask(MANY)
    assert resident_mb(writer) - before < MOST_MB
