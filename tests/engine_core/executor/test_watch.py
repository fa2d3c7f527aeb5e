"""Which stage is found to stand still, by ticks."""

import pytest

from engine_core.executor.stage_link import (
    CHECK_SECONDS,
    CHECKS_A_BEAT,
    StageWatch,
    WorkerLostError,
)
from tests.engine_core.configs import execution_config
from workers.contract.messages import WorkerBeat
from workers.contract.process import SILENT_BEATS


def watch_of(num_stages: int, stall_timeout: float = 60) -> StageWatch:
    names = {"stall_timeout": "--stall"}
    execution = execution_config(name="m", num_stages=num_stages, setting_names=names)
    return StageWatch(execution, stall_timeout)


def let_pass(watch: StageWatch, seconds: float, oldest: int | None, last: dict[int, int]) -> None:
    """Let so many seconds pass with `oldest` in flight. Stages that beat report a `last` step."""
    for tick in range(round(seconds / CHECK_SECONDS)):
        if tick % CHECKS_A_BEAT == 0:
            for stage, finished in last.items():
                watch.heard(WorkerBeat(stage, finished))
        watch.tick(oldest)


def test_an_idle_stage_that_is_silent_stands_still() -> None:
    watch = watch_of(2)
    let_pass(watch, 100, None, {0: 5, 1: 5})
    let_pass(watch, SILENT_BEATS - 1, None, {0: 5})
    with pytest.raises(WorkerLostError, match="worker 1 of m stands still: no heartbeat for 8 s"):
        let_pass(watch, 1, None, {0: 5})


def test_silence_means_nothing_while_a_step_is_in_flight_and_counts_from_its_end() -> None:
    watch = watch_of(1)
    let_pass(watch, 59, 0, {})
    let_pass(watch, SILENT_BEATS, None, {})
    let_pass(watch, 59, 1, {})
    let_pass(watch, 59, 2, {})


@pytest.mark.parametrize(
    ("finished", "stage"),
    [({0: 6, 1: 6}, 0), ({0: 8, 1: 6}, 1), ({0: 7, 1: 7}, 1), ({0: 6}, 1)],
    ids=["first behind", "second behind", "device behind", "second silent, first waits for it"],
)
def test_of_a_step_that_does_not_end_the_first_stage_that_is_behind_is_named(
    finished: dict[int, int], stage: int
) -> None:
    watch = watch_of(2)
    let_pass(watch, 60, 7, finished)
    why = r"step 7 has not ended in 60 s \(--stall\)"
    with pytest.raises(WorkerLostError, match=f"worker {stage} of m stands still: {why}"):
        let_pass(watch, 1, 7, finished)


def test_with_a_timeout_of_0_nothing_is_watched() -> None:
    watch = watch_of(1, 0)
    let_pass(watch, 1000, None, {})
    let_pass(watch, 1000, 7, {})


@pytest.mark.parametrize("seconds", [0.1, 1.6, 2.0])
def test_a_step_is_found_within_a_check_of_the_timeout(seconds: float) -> None:
    watch = watch_of(2, seconds)
    let_pass(watch, 100, None, {0: 5, 1: 5})
    let_pass(watch, seconds // CHECK_SECONDS * CHECK_SECONDS, 6, {0: 6})
    with pytest.raises(WorkerLostError, match="step 6 has not ended"):
        let_pass(watch, 2 * CHECK_SECONDS, 6, {0: 6})
