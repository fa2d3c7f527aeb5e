"""What clients can do where the disk of the state folder is full: above all, free it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from server.batches.state.state_folder import StateFolder
from server.settings.settings import State
from tests.server.batches.state.full_disk import fill, no_file_grows, small_disk
from tests.server.batches.state.opened import prepared
from tests.server.batches.state.test_endpoints import batch_of, served, upload
from tests.server.batches.state.test_state_folder import batch, stored

RESERVE = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path) as folder:
        yield folder


@pytest.fixture
def state(disk: Path) -> State:
    return prepared(disk / "state")


@pytest_asyncio.fixture
async def http(state: State) -> AsyncIterator[httpx.AsyncClient]:
    async with served(state, "mine") as client:
        yield client


def is_refused(answer: httpx.Response) -> None:
    assert answer.status_code == 507, answer.text
    assert answer.json()["error"]["code"] == "storage_full"


async def test_a_full_disk_can_be_freed(http: httpx.AsyncClient, disk: Path) -> None:
    files = [(await upload(http)).json()["id"] for _ in range(2)]
    batch = (await http.post("/v1/batches", json=batch_of(files[0]))).json()["id"]
    assert (disk / "state" / "reserve").stat().st_blocks * 512 == RESERVE
    filling = fill(disk)

    refused = 0
    for _ in range(50):  # until the log of the database has to grow
        made = await http.post("/v1/batches", json=batch_of(files[0]))
        assert made.status_code in (200, 507), made.text
        refused += made.status_code == 507
    assert refused
    is_refused(await upload(http, b"x" * 4000))
    assert (await http.get(f"/v1/files/{files[0]}")).status_code == 200

    cancelled = await http.post(f"/v1/batches/{batch}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelling")
    for file in files:
        gone = await http.delete(f"/v1/files/{file}")
        assert gone.status_code == 200, gone.text
    filling.unlink()
    assert (await upload(http)).status_code == 200


async def test_a_restart_on_a_full_disk_frees_it_too(state: State, disk: Path) -> None:
    async with served(state, "mine") as http:
        file = (await upload(http)).json()["id"]
    fill(disk)
    async with served(prepared(disk / "state"), "mine") as http:
        assert (await http.delete(f"/v1/files/{file}")).status_code == 200


def test_the_reserve_is_taken_back_once_there_is_room(state: State, disk: Path) -> None:
    folder = StateFolder(disk / "state", state.token)
    fill(disk).unlink()
    (disk / "state" / "reserve").unlink()
    filling = fill(disk)
    with pytest.raises(OSError, match="No space left"):
        folder.database.probe(0)
    filling.unlink()
    with pytest.raises(OSError, match="No space left"):
        folder.database.probe(9 << 20)
    folder.database.probe(0)
    assert (disk / "state" / "reserve").stat().st_size == RESERVE


async def test_without_any_reserve_contents_go_first(tmp_path: Path) -> None:
    """And what failed does not keep the next one from being done."""
    state = prepared(tmp_path)
    async with served(state, "mine") as http:
        files = [(await upload(http)).json()["id"] for _ in range(2)]
        made = await http.post("/v1/batches", json=batch_of(files[0]))
        batch = made.json()["id"]
        with no_file_grows((tmp_path / "penstock.db-wal").stat().st_size):
            is_refused(await upload(http, b"x" * 4000))
            is_refused(await http.post("/v1/batches", json=batch_of(files[0])))
            is_refused(await http.post(f"/v1/batches/{batch}/cancel"))
            is_refused(await http.delete(f"/v1/files/{files[1]}"))
            assert [path.name for path in (tmp_path / "files").iterdir()] == [files[0]]
            content = await http.get(f"/v1/files/{files[1]}/content")
            assert (content.status_code, content.json()["error"]["code"]) == (410, "gone")
        assert (await http.delete(f"/v1/files/{files[1]}")).status_code == 200
        cancelled = await http.post(f"/v1/batches/{batch}/cancel")
        assert cancelled.json()["status"] == "cancelling"
        assert (await upload(http)).status_code == 200


def test_what_expires_goes_from_a_full_disk(state: State, disk: Path) -> None:
    folder = StateFolder(disk / "state", state.token)
    old = stored(folder, expires_at=1)
    fill(disk)
    folder.files.drop_expired()
    assert not folder.files.path(old.id).exists()
    assert folder.files.unknown() == set()


def test_a_batch_ends_on_a_full_disk(state: State, disk: Path) -> None:
    folder = StateFolder(disk / "state", state.token)
    one = batch()
    folder.batches.add(one)
    fill(disk)
    folder.batches.end(one.id, "failed", (), errors="[]")
    assert folder.batches.status(one.id) == "failed"
