"""What a refused request has sent is free when it is answered: the garbage collector comes late."""

import os
from pathlib import Path

import pytest

from engine_core.messages import Failed
from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.support import server_config

BODY = {"prompt": "x" * (7 << 20)}
FEW, MANY = 3, 35
"""Requests: together the many send 245 MB, and the collector does not come so soon."""
MOST_MB = 120


@pytest.fixture(scope="module")
def writer(folder, tokenizer):
    builder = DeploymentBuilder(folder, tokenizer)
    deployment = builder.open(server_config(builder.model("writer", "generate")))
    yield deployment
    builder.close()


def resident_mb(deployment: Deployment) -> float:
    statm = Path(f"/proc/{deployment.api.process.pid}/statm").read_text()
    return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.parametrize("refused_by", ["no model", "a field", "the engine"])
def test_many_refused_requests_take_no_more_memory_than_few(writer: Deployment, refused_by: str):
    body, status = BODY, 400
    if refused_by == "no model":
        body, status = {**BODY, "model": "nobody"}, 404
    if refused_by == "a field":
        body = {**BODY, "max_tokens": -1}
    writer.engines["writer"].script.refusal = Failed(0, "context_length_exceeded", "no", "prompt")

    def ask(times: int) -> None:
        for _ in range(times):
            assert writer.post("/v1/completions", body).status_code == status

    ask(FEW)
    before = resident_mb(writer)
    ask(MANY)
    assert resident_mb(writer) - before < MOST_MB
