import pytest

from benchmarks import wrk
from benchmarks.report import NotMeasuredError


def test_without_wrk_it_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotMeasuredError, match="apt install wrk"):
        wrk.post("http://127.0.0.1:9/", {}, connections=1, seconds=1)


def test_rates_are_per_second():
    load = wrk.Load(requests=300, microseconds=2_000_000, failed=0, median_us=1, p99_us=2)
    assert load.per_second == 150
