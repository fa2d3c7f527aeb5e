import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from server.batches.result_log import JobFileError, JobIdentity, ResultLog

IDENTITY = JobIdentity(input_digest="ab", input_bytes=10, lines=50, options={"--dtype": "auto"})


def logged(path: Path, indices: range) -> dict[int, bytes]:
    log = ResultLog(path, IDENTITY, resume=False)
    results = {index: b'{"custom_id":"%d"}' % index for index in indices}
    for index in reversed(indices):
        log.add(index, results[index])
    log.sync()
    assert {i: r for i, r in log.results() if r is not None} == results
    log.close()
    return results


def resumed(path: Path, identity: JobIdentity = IDENTITY) -> dict[int, bytes]:
    log = ResultLog(path, identity, resume=True)
    found = {i: r for i, r in log.results() if r is not None}
    assert all(log.has(index) == (index in found) for index in range(identity.lines))
    log.close()
    return found


def test_results_come_back(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert resumed(path) == {}
    path.unlink()
    results = logged(path, range(30))
    assert resumed(path) == results


def test_what_was_not_synced_is_not_there(tmp_path: Path) -> None:
    log = ResultLog(tmp_path / "log", IDENTITY, resume=False)
    log.add(1, b"{}")
    log.sync()
    log.add(2, b"{}")
    log.close()
    assert resumed(tmp_path / "log") == {1: b"{}"}


def test_a_torn_record_is_dropped_wherever_it_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "log"
    results = logged(path, range(10))
    whole = path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        count = max(0, sum(end <= size for end in ends) - 1)
        assert resumed(path) == dict(list(reversed(results.items()))[:count])
        again = ResultLog(path, IDENTITY, resume=True)
        again.add(40, b"[40]")
        again.sync()
        again.close()
        assert resumed(path)[40] == b"[40]", "the next record is whole"


def test_a_changed_byte_ends_what_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "log"
    logged(path, range(10))
    whole = path.read_bytes()
    head = whole.index(b"\n") + 1
    for _ in range(60):
        changed = bytearray(whole)
        position = random.randrange(head, len(whole))
        changed[position] ^= 1 << random.randrange(8)
        path.write_bytes(changed)
        found = resumed(path)
        assert len(found) <= whole.count(b"\n", head, position)
        assert all(b'"%d"' % index in result for index, result in found.items())


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (replace(IDENTITY, input_digest="cd"), "the input has changed"),
        (replace(IDENTITY, options={"--dtype": "float16"}), "--dtype is float16, and was auto"),
        (replace(IDENTITY, options={}), "--dtype is not given, and was auto"),
    ],
)
def test_another_job_is_refused(tmp_path: Path, other: JobIdentity, says: str) -> None:
    path = tmp_path / "log"
    logged(path, range(3))
    before = path.read_bytes()
    with pytest.raises(JobFileError, match=says):
        resumed(path, other)
    assert path.read_bytes() == before


def test_a_log_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "log"
    logged(path, range(3))
    with pytest.raises(JobFileError, match="--resume"):
        ResultLog(path, IDENTITY, resume=False)
    path.write_bytes(b"something else\n")
    with pytest.raises(JobFileError, match="no file of results"):
        resumed(path)
