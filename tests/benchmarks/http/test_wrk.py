import pytest

from benchmarks.http import wrk
from benchmarks.report import NotMeasuredError


def test_without_wrk_it_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotMeasuredError, match="apt install wrk"):
        wrk.post("http://127.0.0.1:9/", {}, connections=1, seconds=1)


def test_rates_are_per_second():
    load = wrk.Load(requests=300, microseconds=2_000_000, failed=0, median_us=1, p99_us=2)
    assert load.per_second == 150


def test_an_offer_counts_what_was_taken_and_what_was_offered():
    offer = wrk.Offer(
        microseconds=2_000_000, taken=100, taken_max_us=3, refused=900, refused_p95_us=2, failed=0
    )
    assert (offer.taken_per_second, offer.offered_per_second) == (50, 500)
