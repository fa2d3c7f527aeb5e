"""Batches of a whole daemon, which is killed in the middle of one, and uploads that break off."""

import json
import os
import signal
import socket
import time
from pathlib import Path

import httpx
import openai
import pytest

from tests.e2e.daemon import Daemon, running
from tests.patience import PATIENCE, wait_until


def lines(count: int, tokens: int = 8) -> bytes:
    return b"".join(
        json.dumps(
            {
                "custom_id": str(number),
                "method": "POST",
                "url": "/v1/completions",
                "body": {"prompt": f"The dam number {number}", "max_tokens": tokens},
            }
        ).encode()
        + b"\n"
        for number in range(count)
    )


def client_of(daemon: Daemon, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{daemon.url}/v1", api_key=key, max_retries=0)


def begin(client: openai.OpenAI, contents: bytes) -> str:
    file = client.files.create(file=("in.jsonl", contents), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    return batch.id


def ended(client: openai.OpenAI, batch_id: str) -> openai.types.Batch:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        batch = client.batches.retrieve(batch_id)
        if batch.status not in ("validating", "in_progress", "finalizing", "cancelling"):
            return batch
        time.sleep(0.1)
    raise AssertionError(f"not over: {client.batches.retrieve(batch_id)}")


def is_under_way(client: openai.OpenAI, batch_id: str) -> bool:
    counts = client.batches.retrieve(batch_id).request_counts
    return counts is not None and 0 < counts.completed < counts.total


@pytest.mark.parametrize(
    "killed", [pytest.param("daemon", marks=pytest.mark.long), "batch process"]
)
def test_a_kill_loses_no_line_and_answers_none_twice(tmp_path: Path, killed: str) -> None:
    """The batch process is stopped, for which its supervisor kills it."""
    arguments = ["--threads", "1", "--api-workers", "2", "--state-dir", str(tmp_path / "state")]
    arguments += ["--stall-timeout", "8"]
    with running(*arguments) as daemon:
        batch_id = begin(client_of(daemon), lines(400))
        wait_until(lambda: is_under_way(client_of(daemon), batch_id))
        if killed == "batch process":
            (process,) = daemon.children()["server.batches.batch_process"]
            os.kill(process, signal.SIGSTOP)
            batch = ended(client_of(daemon), batch_id)
        else:
            os.kill(daemon.pid, signal.SIGKILL)
            daemon.process.wait(PATIENCE)
    if killed == "daemon":
        with running(*arguments) as daemon:
            batch = ended(client_of(daemon), batch_id)
            text = client_of(daemon).files.content(batch.output_file_id or "").text
        found = [json.loads(line)["custom_id"] for line in text.splitlines()]
        assert found == [str(number) for number in range(400)]
    assert (batch.status, batch.error_file_id) == ("completed", None)
    assert batch.request_counts is not None
    assert batch.request_counts.completed == 400


def test_a_stop_does_not_wait_for_a_batch(tmp_path: Path) -> None:
    with running("--threads", "1", "--state-dir", str(tmp_path)) as daemon:
        batch_id = begin(client_of(daemon), lines(5000, tokens=64))
        wait_until(lambda: is_under_way(client_of(daemon), batch_id))
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.exit_code() == 0
        assert not any("error" in line.lower() for line in daemon.log), daemon.log


def test_an_upload_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    with running("--threads", "1", "--state-dir", str(tmp_path)) as daemon:
        address = httpx.URL(daemon.url)
        with socket.create_connection((address.host, address.port or 0)) as connection:
            connection.sendall(
                b"POST /v1/files HTTP/1.1\r\nhost: a\r\ncontent-length: 9999999\r\n"
                b"content-type: multipart/form-data; boundary=b\r\n\r\n"
                b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
                + b"x"
                * (3 << 20)
            )
            wait_until(lambda: any((tmp_path / "files").iterdir()))
        wait_until(lambda: not any((tmp_path / "files").iterdir()))
        assert client_of(daemon).files.list().data == []


def test_an_upload_may_be_larger_than_a_body(tmp_path: Path) -> None:
    with running("--threads", "1", "--state-dir", str(tmp_path)) as daemon:
        client = client_of(daemon)
        file = client.files.create(file=("in.jsonl", b"x" * (40 << 20)), purpose="batch")
        assert file.bytes == 40 << 20
        assert len(client.files.content(file.id).content) == 40 << 20


def test_a_second_daemon_on_a_folder_has_none(tmp_path: Path) -> None:
    arguments = ["--threads", "1", "--state-dir", str(tmp_path)]
    with running(*arguments) as daemon, running(*arguments) as second:
        assert client_of(daemon).files.list().data == []
        with pytest.raises(openai.APIStatusError) as refused:
            client_of(second).files.list()
        assert refused.value.status_code == 501
        assert any("another daemon's" in line for line in second.log)
