"""The access log of a real daemon with two API processes."""

import json
import os
import signal

import httpx
import pytest

from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.daemon import running

REQUESTS = 12


def test_each_request_has_a_line_with_its_times(capfd: pytest.CaptureFixture[str]) -> None:
    model = str(demo_models()[GENERATOR_NAME])
    arguments = ["--access-log", "json", "--api-workers", "2", "--threads", "1"]
    with running(model, *arguments) as daemon:
        for number in range(REQUESTS):
            body = {"prompt": "The function", "max_tokens": 4, "ignore_eos": True}
            httpx.post(
                f"{daemon.url}/v1/completions",
                json=body,
                headers={"x-request-id": f"mine-{number}"},
                timeout=60,
            )
        os.kill(daemon.pid, signal.SIGTERM)
        assert daemon.exit_code() == 0
    found = map(json.loads, capfd.readouterr().out.splitlines())
    lines = {line["id"]: line for line in found if line["path"] == "/v1/completions"}
    assert set(lines) == {f"mine-{number}" for number in range(REQUESTS)}
    for line in lines.values():
        assert (line["status"], line["output_tokens"]) == (200, 4)
        assert line["prompt_tokens"] > 0
        assert 0 < line["queue_seconds"] < line["first_token_seconds"] < line["total_seconds"]
