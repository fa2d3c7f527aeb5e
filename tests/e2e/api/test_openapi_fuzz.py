"""Requests made from the daemon's own description: no failures inside, and answers as described."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from benchmarks.attacks.fuzzed_requests import FuzzedRequests
from benchmarks.attacks.target import Target
from tests.e2e.daemon import Daemon
from tests.e2e.full_daemon import CLIENTS_PYTHON, HEADERS, KEY

# What is valid by the description may still be refused: a model's name, a text too long for it, two
# fields that exclude each other.
_NOT_CHECKED = "positive_data_acceptance"


def bodies(described: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The contents of all requests, by media type."""
    for item in described["paths"].values():
        for operation in item.values():
            yield from operation.get("requestBody", {}).get("content", {}).values()


@pytest.fixture
def attacked(options_daemon: Daemon) -> Iterator[Target]:
    """The daemon, which counts no failure of its own afterwards."""
    target = Target(httpx.URL(options_daemon.url).port or 80, KEY)
    before = target.server_errors()
    yield target
    assert target.server_errors() == before
    assert options_daemon.process.poll() is None


@pytest.mark.long
@pytest.mark.timeout(1800)  # 226 s alone on two cores, more than 600 beside other tests
@pytest.mark.usefixtures("attacked")
def test_answers_are_as_described(options_daemon: Daemon, tmp_path) -> None:
    described = httpx.get(f"{options_daemon.url}/openapi.json", headers=HEADERS).json()
    # Each of them would be varied field by field, which takes four times as long.
    for content in bodies(described):
        content.pop("examples", None)
    (tmp_path / "openapi.json").write_text(json.dumps(described))
    asked = [
        str(CLIENTS_PYTHON.with_name("schemathesis")), "run", "openapi.json",
        "--url", options_daemon.url,
        "--header", f"Authorization: {HEADERS['Authorization']}",
        "--seed", "1", "--max-examples", "2", "--phases", "coverage,fuzzing",
        "--generation-database", "none", "--request-timeout", "30",
        "--exclude-checks", _NOT_CHECKED, "--continue-on-failure", "--no-color",
        "--warnings", "off",
    ]  # fmt: skip
    ended = subprocess.run(asked, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_spoilt_requests_are_no_failures_of_the_daemon(attacked: Target) -> None:
    status, document = attacked.answer("GET", "/openapi.json", None, attacked.headers())
    assert status == 200
    requests = FuzzedRequests(json.loads(document), seed=3)
    statuses = [requests.send(attacked) for _ in range(200)]
    assert 200 in statuses
    assert all(200 <= status < 500 for status in statuses)
