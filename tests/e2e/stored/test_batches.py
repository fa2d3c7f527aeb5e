"""Batches of a whole daemon, which is killed in the middle of one, and uploads that break off."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemon import Daemon
from tests.e2e.stored.generator import begin, client_of, ended, lines, storing
from tests.patience import PATIENCE, wait_until

JSON = dict[str, Any]


def test_a_killed_batch_process_loses_no_line_and_a_stop_waits_for_none(tmp_path: Path) -> None:
    with storing(tmp_path) as daemon:
        batch_id = begin(client_of(daemon), lines(400))
        (process,) = daemon.children()["server.batches.batch_process"]
        os.kill(process, signal.SIGKILL)
        check_results(daemon, batch_id)
        before = len(daemon.log)
        begin(client_of(daemon), lines(5000, tokens=64))
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.exit_code() == 0
        assert not any("error" in line.lower() for line in daemon.log[before:]), daemon.log


@pytest.mark.long
def test_a_killed_daemon_loses_no_line(tmp_path: Path) -> None:
    with storing(tmp_path, "--api-workers", "2") as daemon:
        batch_id = begin(client_of(daemon), lines(400))
        os.kill(daemon.pid, signal.SIGKILL)
        daemon.process.wait(PATIENCE)
    with storing(tmp_path, "--api-workers", "2") as daemon:
        check_results(daemon, batch_id)


def check_results(daemon: Daemon, batch_id: str) -> None:
    """Every line is answered once, in its place."""
    client = client_of(daemon)
    batch = ended(client, batch_id)
    assert (batch.status, batch.error_file_id) == ("completed", None)
    assert batch.request_counts is not None
    assert batch.request_counts.completed == 400
    text = client.files.content(batch.output_file_id or "").text
    found = [json.loads(line)["custom_id"] for line in text.splitlines()]
    assert found == [str(number) for number in range(400)]


def answered(demo: Daemon, url: str, *bodies: JSON) -> tuple[dict[str, JSON], dict[str, JSON]]:
    """The answers to lines with these bodies, and the errors, by their numbers."""
    given = [
        json.dumps({"custom_id": f"{index}", "method": "POST", "url": url, "body": body})
        for index, body in enumerate(bodies)
    ]
    client = client_of(demo)
    file = client.files.create(file=("in.jsonl", "\n".join(given).encode()), purpose="batch")
    # The client's own types know fewer endpoints.
    created = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/completions",
        completion_window="24h",
        extra_body={"endpoint": url},
    )
    batch = ended(client, created.id)
    assert (batch.endpoint, batch.status) == (url, "completed")
    answers, errors = (
        {one["custom_id"]: one["response"]["body"] for one in map(json.loads, text.splitlines())}
        for text in (
            client.files.content(file or "").text
            for file in (batch.output_file_id, batch.error_file_id)
        )
    )
    counts = batch.request_counts
    assert counts is not None
    found = (counts.total, counts.completed, counts.failed)
    assert found == (len(bodies), len(answers), len(errors))
    return answers, {name: body["error"] for name, body in errors.items()}


def test_a_batch_of_decisions(demo: Daemon) -> None:
    wet = {"type": "predicate", "instructions": "It is wet."}
    bodies = [{"input": "It rains.", "questions": [wet] * count} for count in (1, 0, 2)]
    answers, errors = answered(demo, "/v1/decisions", *bodies)
    assert {name: len(body["answers"]) for name, body in answers.items()} == {"0": 1, "2": 2}
    assert errors["1"]["param"] == "questions"


def test_a_batch_of_responses(demo: Daemon) -> None:
    """Nothing is stored for a line."""
    body = {"input": "Water", "max_output_tokens": 2}
    alone = {"store": True}, {"previous_response_id": "resp_1"}
    answers, errors = answered(demo, "/v1/responses", body, *(body | each for each in alone))
    assert answers["0"]["usage"]["output_tokens"] == 2
    assert not answers["0"]["store"]
    assert [errors[name]["param"] for name in "12"] == ["store", "previous_response_id"]
    assert {error["code"] for error in errors.values()} == {"state_unavailable"}


@pytest.fixture
def files(demo: Daemon) -> Path:
    """The folder of the files that clients of the demo daemon have stored."""
    words = Path(f"/proc/{demo.pid}/cmdline").read_text().split("\0")
    return Path(words[words.index("--state-dir") + 1], "files")


def test_an_upload_that_breaks_off_leaves_nothing(demo: Daemon, files: Path) -> None:
    before = set(files.iterdir())
    with demo.connect() as connection:
        connection.sendall(
            b"POST /v1/files HTTP/1.1\r\nhost: a\r\ncontent-length: 9999999\r\n"
            b"content-type: multipart/form-data; boundary=b\r\n\r\n"
            b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
            + b"x"
            * (3 << 20)
        )
        wait_until(lambda: set(files.iterdir()) > before)
    wait_until(lambda: set(files.iterdir()) == before)
    assert {file.id for file in client_of(demo).files.list()} == {file.name for file in before}


def test_an_upload_may_be_larger_than_a_body(demo: Daemon) -> None:
    client = client_of(demo)
    file = client.files.create(file=("in.jsonl", b"x" * (40 << 20)), purpose="batch")
    assert file.bytes == 40 << 20
    assert len(client.files.content(file.id).content) == 40 << 20
    client.files.delete(file.id)
