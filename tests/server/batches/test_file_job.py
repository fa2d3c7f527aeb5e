"""A file of requests: its lines, its results in their order, jobs that go on."""

import asyncio
import json
from itertools import pairwise
from pathlib import Path

import pytest

from server.batches.answering import Answer, Line
from server.batches.file_job import (
    LineError,
    LineRules,
    custom_id_of,
    output_line,
    read_line,
    read_output,
)
from server.batches.result_log import JobFileError
from tests.server.batches.requests_file import RULES, Echo, job_of, line, numbered, outputs, write


async def test_results_are_in_the_order_of_the_lines(tmp_path: Path) -> None:
    texts = [f"{'abc'[number % 3] * 500} {number}" for number in range(60)]
    source = write(tmp_path, *[line(str(n), text) for n, text in enumerate(texts)])
    job, backend = job_of(source), Echo()
    await job.open(resume=False)
    await job.run(backend)
    asked = [int(custom_id) % 3 for custom_id in backend.asked]
    assert sum(one != other for one, other in pairwise(asked)) == 2
    job.assemble(tmp_path / "out")
    assert [each["custom_id"] for each in outputs(tmp_path / "out")] == [str(n) for n in range(60)]
    assert (job.summary.requests, job.summary.completed, job.summary.failed) == (60, 60, 0)
    job.remove()
    assert not (tmp_path / "log").exists()


async def test_lines_are_asked_for_in_the_order_of_their_texts(tmp_path: Path) -> None:
    """However they differ: documents of 50 letters behind instructions of 1,000 are too short for
    the hashes of the first pass."""
    texts = [f"{'x' * 1000}{chr(97 + number % 7) * 50}{number:03}" for number in range(600)]
    job = job_of(write(tmp_path, *[line(text[1000:], text) for text in texts]))
    await job.open(resume=False)
    await job.run(backend := Echo())
    assert backend.asked == sorted(backend.asked)
    job.close()


async def test_bad_lines_have_their_errors_in_their_places(tmp_path: Path) -> None:
    rules = LineRules(max_line_bytes=1000)
    lines = [line("a"), b"nonsense\n", b"\n", line("a"), line("b", "x" * 1000), line("c")]
    source = write(tmp_path, *lines)
    job = job_of(source, rules)
    await job.open(resume=False)
    await job.run(backend := Echo())
    job.assemble(tmp_path / "out")
    found = outputs(tmp_path / "out")
    codes = ("invalid_json_line", "duplicate_custom_id", "body_too_large")
    for each, code in zip(found, (None, *codes, None), strict=True):
        assert each["error"] is None if code is None else code in str(each["error"])
    assert sorted(backend.asked) == ["a", "c"]
    assert len({str(each["id"]) for each in found}) == 5
    assert (job.summary.completed, job.summary.failed) == (2, 3)
    job.assemble(tmp_path / "good", tmp_path / "bad")
    assert [len(outputs(tmp_path / name)) for name in ("good", "bad")] == [2, 3]
    job.close()


async def test_a_cancelled_job_goes_on(tmp_path: Path) -> None:
    source = write(tmp_path, *numbered(40))
    job = job_of(source)
    await job.open(resume=False)
    running = asyncio.create_task(job.run(Echo(lambda done: stop.set() if done == 9 else None)))
    stop = asyncio.Event()
    await stop.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    done = job.summary.done
    assert 9 <= done < 40
    job.assemble(tmp_path / "out")
    assert len(outputs(tmp_path / "out")) == done
    late = LineError("batch_expired", "too late")
    job.assemble(tmp_path / "out", tmp_path / "errors", late)
    assert len(outputs(tmp_path / "errors")) == 40 - done
    job.close()

    with pytest.raises(JobFileError, match="--resume"):
        await job_of(source).open(resume=False)
    again, backend = job_of(source), Echo()
    await again.open(resume=True)
    assert again.summary.done == done
    await again.run(backend)
    assert len(backend.asked) == 40 - done
    again.assemble(tmp_path / "out")
    assert [each["custom_id"] for each in outputs(tmp_path / "out")] == list(map(str, range(40)))
    again.remove()


async def test_another_input_or_model_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path, line("a"))
    job = job_of(source, model="one")
    await job.open(resume=False)
    job.close()
    with pytest.raises(JobFileError, match="model is two, and was one"):
        await job_of(source, model="two").open(resume=True)
    write(tmp_path, line("a"), line("b"))
    with pytest.raises(JobFileError, match="the input has changed"):
        await job_of(source, model="one").open(resume=True)


def test_a_request_is_read() -> None:
    read = read_line(4, 9, line("a", "text", max_tokens=3), RULES)
    assert isinstance(read, Line)
    assert (read.index, read.custom_id, read.url) == (4, "a", "/v1/completions")
    assert json.loads(read.body) == {"prompt": "text", "max_tokens": 3}


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (b"nonsense", "invalid_json_line", "line 9: not JSON"),
        (b"\xff", "invalid_json_line", "utf-8"),
        (b"[" * 100_000, "invalid_request", "objects"),
        (b"5", "invalid_request", "line 9: a line and its body are objects"),
        (b'{"custom_id": "a"}', "invalid_request", "line 9: url: is required"),
        (line("a").replace(b"POST", b"GET"), "invalid_request", "line 9: method: "),
        (line("a").replace(b"completions", b"tokenize"), "invalid_url", "line 9: url: "),
        (line("a", stream=True), "invalid_request", "line 9: stream: "),
        (line("a", priority=3), "invalid_request", "line 9: priority: "),
        (line("a", timeout=3), "invalid_request", "line 9: timeout: "),
        (line("a").replace(b'{"prompt": "a"}', b"[]"), "invalid_request", "body are objects"),
    ],
)
def test_what_is_no_request_is_explained(text: bytes, code: str, says: str) -> None:
    error = read_line(4, 9, text, RULES)
    assert isinstance(error, LineError)
    assert error.code == code
    assert says in error.message


def test_output_lines_are_openais() -> None:
    answer = Answer(200, "req-1", b'{"choices":[]}')
    text = output_line("batch_req_1", "a", answer)
    assert json.loads(text) == {
        "id": "batch_req_1",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "req-1", "body": {"choices": []}},
        "error": None,
    }
    assert read_output(text) == answer
    error = LineError("invalid_url", "line 1: url")
    text = output_line("batch_req_2", None, error)
    assert json.loads(text)["error"] == {"code": "invalid_url", "message": "line 1: url"}
    assert json.loads(text)["response"] is None
    assert read_output(text) == error


def test_an_id_is_read_where_the_rest_is_wrong() -> None:
    assert custom_id_of(b'{"custom_id": "a", "url": 5}') == "a"
    assert custom_id_of(b'{"custom_id": 5}') is None
    half, nested = rb'{"custom_id": "\ud800"}', b"[" * 100_000
    for text in (b"nonsense", b'{"custom_id": "\xff"}', half, nested):
        assert custom_id_of(text) is None
