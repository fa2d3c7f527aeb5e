"""Times of work on a device."""

from collections.abc import Sequence

import pytest
import torch

from workers.device.timing import STEADY, Stopwatch

GPU = torch.device("cuda")


def timed(
    rounds: Sequence[float], monkeypatch: pytest.MonkeyPatch
) -> tuple[float, float, list[int]]:
    """The time and spread of work whose rounds take so long, and the runs of each round."""
    left, runs = iter(rounds), list[int]()

    def take(_: Stopwatch, __: object, count: int) -> float:
        runs.append(count)
        return next(left)

    monkeypatch.setattr(Stopwatch, "_round", take)
    watch = Stopwatch(GPU)
    seconds = watch.seconds(lambda: None)
    return seconds, watch.spread, runs


@pytest.mark.parametrize(
    ("rounds", "seconds", "steady"),
    [
        ([1.0, 1.0, 1.01], 1.0, True),
        # The first round counts for no more than how often the work is repeated.
        ([9.0, 1.0, 2.0, 1.02], 1.0, True),
        ([1.0, 1.3, 5.0, 1.2, 1.0, 1.7, 1.01], 1.0, True),
        ([1.0, *(1.0 + round / 10 for round in range(8))], 1.0, False),
    ],
)
def test_work_is_timed_until_it_takes_as_long_twice(
    rounds: list[float], seconds: float, steady: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, spread, runs = timed(rounds, monkeypatch)
    assert (taken, spread <= STEADY, len(runs)) == (seconds, steady, len(rounds))


@pytest.mark.parametrize(("once", "runs"), [(2e-5, 8), (3e-4, 3), (4e-3, 1)])
def test_short_work_is_repeated(once: float, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert timed([once] * 3, monkeypatch)[2] == [1, runs, runs]


def test_the_spread_is_that_of_the_most_disturbed_work(monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter([1.0, 1.0, 1.5, *[2.0] * 6, *[1.0] * 3])
    monkeypatch.setattr(Stopwatch, "_round", lambda *_: next(left))
    watch = Stopwatch(GPU)
    assert [watch.seconds(lambda: None) for _ in range(2)] == [1.0, 1.0]
    assert watch.spread == pytest.approx(0.5)


def test_on_a_cpu_slow_work_runs_once_and_nothing_is_disturbed() -> None:
    watch, runs = Stopwatch(torch.device("cpu")), list[int]()
    assert watch.seconds(lambda: runs.append(0)) < 0.01
    assert len(runs) == 8
    assert watch.spread == 0
