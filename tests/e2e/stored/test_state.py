"""The state folder of a whole daemon: a database that is lost, a full disk, a rotated key."""

import signal
from pathlib import Path

import httpx
import openai
import pytest

from tests.e2e.daemon import Daemon, metric
from tests.e2e.stored.generator import begin, client_of, ended, lines, storing
from tests.patience import wait_until
from tests.server.batches.state.full_disk import fill, small_disk
from tests.server.batches.state.opened import opened
from tests.server.batches.state.test_state_folder import stored
from tests.server.support import api_keys

CONNECTIONS = 8
"""Fresh ones, so that every API process answers some of them."""


def warnings(daemon: Daemon) -> list[str]:
    return [line for line in daemon.log if "WARNING" in line]


def statuses(daemon: Daemon) -> set[int]:
    return {httpx.get(f"{daemon.url}/v1/files").status_code for _ in range(CONNECTIONS)}


def batches(daemon: Daemon) -> tuple[str, float]:
    """What the status and the metrics say of the batch process."""
    shown = httpx.get(f"{daemon.url}/status").json()["batches"]
    return shown, metric(daemon.url, "penstock_batch_process_up")


def test_a_start_without_the_database_keeps_every_file(tmp_path: Path) -> None:
    state = opened(tmp_path)
    file = stored(state)
    state.close()
    (tmp_path / "penstock.db").rename(tmp_path / "elsewhere")
    with storing(tmp_path) as daemon:
        assert statuses(daemon) == {501}
        (line,) = warnings(daemon)
        assert "penstock.db is missing or empty" in line
        assert batches(daemon) == ("waiting", 0.0)
    (tmp_path / "elsewhere").replace(tmp_path / "penstock.db")
    state = opened(tmp_path)
    assert state.files.get(file.id, "me") == file
    assert state.files.path(file.id).read_bytes() == b"abc"
    state.close()


def test_a_database_that_is_replaced_is_noticed(tmp_path: Path) -> None:
    with storing(tmp_path, "--api-workers", "2") as daemon:
        file = client_of(daemon).files.create(file=("in.jsonl", lines(2)), purpose="batch")
        assert batches(daemon) == ("running", 1.0)
        (tmp_path / "penstock.db").write_bytes(bytes(8192))
        wait_until(lambda: warnings(daemon))
        assert statuses(daemon) == {501}
        assert batches(daemon) == ("waiting", 0.0)
        (line,) = warnings(daemon)
        assert "replaced or cut" in line
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.exit_code() == 0
        assert len(warnings(daemon)) == 1, daemon.log
    assert (tmp_path / "files" / file.id).read_bytes() == lines(2)


def test_batches_wait_for_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk, storing(disk / "state") as daemon:
        client = client_of(daemon)
        batch_id = begin(client, lines(400))
        pids = daemon.children()
        filling = fill(disk)
        wait_until(lambda: batches(daemon) == ("waiting", 0.0))
        with pytest.raises(openai.APIStatusError) as refused:
            client.files.create(file=("in.jsonl", lines(400)), purpose="batch")
        assert refused.value.status_code == 507
        wait_until(lambda: warnings(daemon))
        filling.unlink()
        batch = ended(client, batch_id)
        assert (batch.status, batch.error_file_id) == ("completed", None)
        assert batches(daemon) == ("running", 1.0)
        assert daemon.children() == pids
        assert len(warnings(daemon)) == 1, daemon.log


def test_a_key_that_is_rotated_keeps_its_files(tmp_path: Path) -> None:
    """A file that a key stored before it had a name is for all keys of that name."""
    state, keys = opened(tmp_path / "state"), tmp_path / "keys"
    file = stored(state, api_keys("sk-old")[0].owner)
    state.close()
    keys.write_text("name=shop sk-old\n")
    with storing(tmp_path / "state", "--api-key-file", str(keys)) as daemon:
        keys.write_text("name=shop sk-new\nsk-other\n")
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: any("read again" in line for line in daemon.log))

        def found(key: str) -> list[str] | None:
            try:
                return [each.id for each in client_of(daemon, key).files.list().data]
            except openai.AuthenticationError:
                return None

        wait_until(lambda: found("sk-new") is not None)
        assert [found(key) for key in ("sk-new", "sk-other", "sk-old")] == [[file.id], [], None]
