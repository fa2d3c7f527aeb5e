"""The parts of a request's trace, from its record."""

from typing import Any

import pytest

from engine_core.messages import JobTiming
from server.observe.request_record import RequestRecord
from server.observe.request_tracer import attributes, failed, phases

TIMING = JobTiming(1, tokenize=0.5, queue=0.25, prefill=1.0, cached=0)


def record(jobs: int = 0, **known: Any) -> RequestRecord:
    usual = {"started": 0.0, "endpoint": "/v1/completions", "status": 200}
    made = RequestRecord(request_id="req-1", **usual | known)
    for _ in range(jobs):
        made.add_timing(TIMING)
    return made


@pytest.mark.parametrize(
    ("known", "begins", "end"),
    [
        # They end with the first token, and decoding follows.
        ({"total_s": 4.0, "first_token_s": 2.0, "decode_s": 1.5}, (0.25, 0.75, 1.0, 2.0), 3.5),
        # Those of an encoded request end with its answer,
        ({"total_s": 2.0}, (0.25, 0.75, 1.0), 2.0),
        # or with its last text where the answer took longer.
        ({"total_s": 3.0, "encoded_s": 2.0}, (0.25, 0.75, 1.0), 2.0),
        # None lies outside its request.
        ({"total_s": 1.0, "first_token_s": 0.9, "decode_s": 3.0}, (0.0, 0.0, 0.0, 0.9), 1.0),
    ],
)
def test_parts_follow_each_other(
    known: dict[str, float], begins: tuple[float, ...], end: float
) -> None:
    names = ("tokenize", "queue", "prefill", "decode")[: len(begins)]
    expected = [*zip(names, begins, (*begins[1:], end), strict=True)]
    assert phases(record(jobs=1, **known)) == expected


@pytest.mark.parametrize("jobs", [0, 2])
def test_only_a_single_job_has_parts(jobs: int) -> None:
    assert phases(record(jobs=jobs, total_s=2.0)) == []


def test_what_is_not_known_is_no_attribute() -> None:
    assert attributes(record(model="writer", total_s=2.0), "POST", "/v1/completions") == {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "url.path": "/v1/completions",
        "http.response.status_code": 200,
        "gen_ai.request.id": "req-1",
        "gen_ai.request.model": "writer",
        "gen_ai.latency.e2e": 2.0,
    }


def test_sums_of_several_jobs_are_attributes() -> None:
    made = record(jobs=2, model="writer", total_s=9.0, decode_s=4.0, endpoint="other")
    known = attributes(made, "POST", "/" + "a" * 5000)
    assert known["gen_ai.latency.time_in_queue"] == 0.5
    assert known["gen_ai.latency.time_in_model_prefill"] == 2.0
    assert known["gen_ai.latency.time_in_model_decode"] == 4.0
    assert "http.route" not in known
    assert known["url.path"] == "/" + "a" * 1023


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        (200, None, False),
        (400, "invalid_request", False),
        (499, None, False),
        (500, "internal_error", True),
        (200, "engine_dead", True),  # a stream that broke off
    ],
)
def test_what_counts_as_an_error(status: int, error: str | None, expected: bool) -> None:
    assert failed(record(status=status, error=error)) == expected
