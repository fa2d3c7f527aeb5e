"""How much a step of an encoder takes: small jobs wait for little beside large ones and batches,
which never starve."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.loop.admission import QueueBound
from engine_core.messages import EncodeJob
from engine_core.refusal import RefusalError
from engine_core.schedulers.cost_model import Coefficients
from engine_core.schedulers.short_steps import STEP_SECONDS
from tests.engine_core.fake_transport import Engine
from tests.engine_core.schedulers.test_prefill_only import A, Steps

SLOW = Coefficients(step=1e-3, token=1.6e-4, attended=0.0, context=0.0)
"""A small encoder on a CPU: 2,048 tokens take a third of a second."""


def on_cpu(stages: int = 1) -> Steps:
    return Steps(max_step_tokens=2048, stages=stages, max_model_len=512, costs=SLOW)


def rows_of(steps: Steps, job: int) -> list[int]:
    """How many rows of it each step had."""
    return [sum(number == job for number, _ in rows) for rows in steps.order]


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("length", [5, 200, 512])
def test_a_small_job_joins_the_next_step_however_many_large_ones_wait(
    stages: int, length: int
) -> None:
    steps = on_cpu(stages)
    steps.add_each(range(50), [length] * 200)
    for job in range(100, 110):
        steps.step()
        assert steps.scheduler.is_open() or stages > 1 or job == 100
        steps.add(job, [12])
        steps.step()
        assert (job, 0) in steps.order[-1]


def test_steps_are_short_beside_small_jobs_and_for_five_seconds_after_an_answer() -> None:
    steps = on_cpu()
    steps.add(1, [100] * 2000)
    steps.step()
    steps.add(2, [12])
    steps.run(100)
    assert [work.tokens for work in steps.works[:3]] == [2000, 512, 500]
    lengthened = next(at for at, work in enumerate(steps.works[1:], 1) if work.tokens > 600)
    elapsed = sum(steps.costs.seconds(work) for work in steps.works[2:lengthened])
    assert elapsed == pytest.approx(5, abs=0.1)


def test_on_a_fast_device_a_short_step_takes_twenty_milliseconds() -> None:
    steps = Steps(max_step_tokens=65_536, max_model_len=512)
    steps.add(1, [512] * 2000)
    steps.add(2, [12])
    steps.step()
    assert 0.9 <= steps.works[0].tokens * 4e-7 / 20e-3 <= 1.02


def test_small_jobs_alone_fill_whole_steps() -> None:
    steps = on_cpu()
    steps.add_each(range(1000), [16])
    steps.drain()
    assert all(work.tokens == 2048 for work in steps.works[:-1])


@pytest.mark.parametrize("length", [16, 512])
def test_a_flood_of_small_jobs_leaves_a_large_one_a_row_of_every_step(length: int) -> None:
    steps = on_cpu()
    steps.add(0, [length] * 100)
    steps.add_each(range(1, 3000), [16])
    steps.run(20)
    assert all(rows_of(steps, 0))
    assert all(512 <= work.tokens <= 1024 for work in steps.works)


def test_a_flood_of_a_lower_priority_value_is_not_delayed_by_a_large_job() -> None:
    steps = on_cpu()
    steps.add(0, [16] * 100, priority=1)
    steps.add_each(range(1, 500), [16])
    steps.run(10)
    assert not any(rows_of(steps, 0))


def test_large_jobs_of_which_a_step_holds_few_take_turns() -> None:
    steps = on_cpu()
    steps.add_each(range(20), [512] * 20)
    steps.run(10)
    assert [sum(rows_of(steps, job)) for job in range(20)] == [2] * 20


COSTS = Coefficients(step=2e-3, token=1e-4, attended=1e-6, context=0.0)
"""20 ms hold 138 tokens in rows of 30, and a step 1,024 tokens."""
LAST = 2**63 - 1


def steps_of(stages: int = 1) -> Steps:
    return Steps(max_step_tokens=1024, stages=stages, max_model_len=128, costs=COSTS)


@pytest.mark.parametrize("stages", [1, 2])
def test_no_priority_of_a_client_is_behind_a_batch(stages: int) -> None:
    steps = Steps(stages=stages)
    steps.add(1, [16] * 4, batch=True, priority=-LAST)
    steps.add(2, [16] * 4, priority=LAST)
    assert steps.drain() == [2, 1]


def test_a_job_that_comes_is_in_the_next_step_and_steps_are_short_then() -> None:
    steps = steps_of()
    steps.add_each(range(50), [30] * 20, batch=True)
    steps.step()
    assert steps.works[0].tokens == 1020, "nobody waits: a step is filled to the brim"
    for job in range(100, 105):
        steps.add(job, [20, 10])
        steps.step()
        assert {(job, 0), (job, 1)} <= set(steps.order[-1])
        assert 0 < min(steps.order[-1])[0] < 50, "the batch goes on"
    assert all(steps.costs.seconds(work) <= STEP_SECONDS for work in steps.works[1:])
    assert all(work.tokens > 100 for work in steps.works[1:])


def test_work_of_clients_is_not_limited_and_a_row_of_the_batch_goes_beside_it() -> None:
    steps = steps_of()
    steps.add(1, [30] * 100, batch=True)
    steps.add(2, [100] * 30)
    steps.run(3)
    assert (rows_of(steps, 2), rows_of(steps, 1)) == ([10, 10, 10], [0, 0, 0])
    steps.add(3, [100] * 9)
    steps.step()
    assert rows_of(steps, 1)[-1] == 1


def test_a_step_is_open_to_who_comes_beside_a_limited_batch() -> None:
    steps = steps_of()
    steps.add(1, [30] * 1000, batch=True)
    steps.step()
    assert not steps.scheduler.is_open()
    steps.add(2, [30])
    steps.step()
    assert steps.scheduler.is_open()


@pytest.mark.parametrize("stages", [1, pytest.param(2, marks=pytest.mark.long), 4])
@settings(max_examples=60)
@given(data=st.data())
def test_mixed_steps_are_bounded_and_every_row_runs_once(stages: int, data: st.DataObject) -> None:
    steps = steps_of(stages)
    lens = st.lists(st.integers(1, 60), min_size=1, max_size=30)
    jobs: dict[int, list[int]] = {}
    steps.add(500, [1])
    for job in range(data.draw(st.integers(1, 12), "jobs")):
        jobs[job] = data.draw(lens, "lens")
        steps.add(job, jobs[job], batch=data.draw(st.booleans(), "batch"))
        for _ in range(data.draw(st.integers(0, 2), "steps")):
            steps.step()
    aborted = data.draw(st.sampled_from([None, *jobs]), "abort")
    if aborted is not None:
        steps.scheduler.abort(steps.jobs[aborted])
    steps.drain()
    grouped = {job for job in jobs if steps.jobs[job].is_batch}
    for rows, work in zip(steps.order, steps.works, strict=True):
        batch = [jobs[job][row] for job, row in rows if job in grouped]
        if len(batch) > 1:
            rounding = COSTS.token * len(batch)
            assert steps.costs.seconds(work) <= STEP_SECONDS + rounding
    ran = sorted(row for rows in steps.order for row in rows if row[0] not in (500, aborted))
    assert ran == [(job, row) for job in jobs if job != aborted for row in range(len(jobs[job]))]


def test_a_batch_is_never_refused_for_its_wait(
    word_tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: QueueBound, *_: float) -> None:
        raise RefusalError("overloaded", "too long a queue", retry_after=1.0)

    monkeypatch.setattr(QueueBound, "admit", refuse)
    engine = Engine(word_tokenizer, "BertModel", 0, max_model_len=16)
    engine.serve(EncodeJob(1, texts=["w5"], batch=True), EncodeJob(2, texts=["w5"]), client=A)
    sent = engine.clients.outputs(A)
    assert [answer.id for outputs in sent for answer in outputs.accepted] == [1]
    assert [answer.id for outputs in sent for answer in outputs.failed] == [2]
