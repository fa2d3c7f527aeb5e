"""The decoder's scheduler against a simulated model: the text never depends on the schedule."""

import pytest

from engine_core.schedulers.request import Status
from tests.engine_core.driver import Driver, hope, jobs_in, prompt_of
from tests.engine_core.simulated_model import next_token, reference

_TEXT = reference(prompt_of(6), 12)
_STOP = frozenset({_TEXT[3]})
_STOPPED = _TEXT[: _TEXT.index(_TEXT[3]) + 1]


@pytest.mark.parametrize(
    ("params", "text", "finish"),
    [
        ({}, _TEXT, "length"),
        ({"eos_token_ids": _STOP}, _STOPPED, "stop"),
        ({"eos_token_ids": frozenset(range(50)), "ignore_eos": True}, _TEXT, "length"),
        ({"stop_token_ids": _STOP, "ignore_eos": True}, _STOPPED, "stop"),
        ({"max_tokens": 0}, [], "length"),
    ],
)
def test_a_text_ends_once_at_its_length_or_a_stop_token(params, text, finish) -> None:
    """A stop token wastes one row and nothing else."""
    driver = Driver(num_blocks=16)
    driver.add(1, prompt_of(6), **({"max_tokens": 12} | params))
    driver.drain()
    assert driver.text(1) == text
    assert [row.finish for row in driver.outputs[1]] == [None] * (len(text) - 1) + [finish]
    assert driver.scheduler.usage().generated_tokens == max(1, len(text))


@pytest.mark.parametrize(("ahead", "stages"), [(1, 1), (0, 1), (0, 2), (0, 4)])
@pytest.mark.parametrize("max_tokens", [4, 1])
def test_a_step_is_submitted_before_its_token_is_known_unless_it_ends_or_waits_for_that(
    max_tokens: int, ahead: int, stages: int
) -> None:
    driver = Driver(num_blocks=16, stages=stages, steps_ahead=ahead)
    driver.add(1, prompt_of(5), max_tokens)
    submitted = [driver.submit() for _ in range(3)]
    assert sum(submitted) == min(1 + ahead, max_tokens)
    driver.drain()
    assert [batch.starts for batch in driver.submitted] == [[0], [5], [6], [7]][:max_tokens]
    assert [batch.after for batch in driver.submitted] == [-1, 0, 1, 2][:max_tokens]
    assert driver.text(1) == reference(prompt_of(5), max_tokens)


def test_first_news_of_a_row_go_before_those_of_older_ones() -> None:
    driver = Driver(num_blocks=16)
    driver.add(1, prompt_of(5), max_tokens=9)
    driver.submit()
    driver.finish()
    driver.add(2, prompt_of(7), max_tokens=9)
    order: list[list[int]] = []
    for _ in range(2):
        driver.submit()
        batch, result = driver.batches.popleft(), driver.pipeline.next_result()
        driver.scheduler.update(batch, result, driver.outbox)
        order += [[row.job for row in outputs.rows] for _, outputs in driver.outbox.take()]
    assert order == [[2, 1], [1, 2]]


def test_the_number_of_micro_batches_follows_the_prompts_that_wait() -> None:
    """P, P + 2 while prompts wait for rounds of steps, P again; each row once in P + 1 … P + 3."""
    driver = Driver(num_blocks=600, stages=4, max_running=8, max_step_tokens=8)
    prompts = driver.add_each((prompt_of(3, seed=job) for job in range(4)), 60)
    depths: list[int] = []
    for number in range(60):
        if number == 10:
            driver.add(9, prompt_of(200, seed=9), max_tokens=3)
        driver.fill()
        depths.append(len(driver.batches))
        driver.finish()
    assert max(depths[:10]) <= 5
    assert max(depths) == 7
    assert max(depths[-10:]) <= 5
    driver.assert_texts(prompts, 60)
    assert driver.text(9) == reference(prompt_of(200, seed=9), 3)


@pytest.mark.parametrize(
    ("priorities", "waited", "order"),
    [([0, 5, -1, 0, -1, -(2**63)], 0.0, [0, 6, 3, 5, 1, 4, 2]), ([0, 0, -1], 10.0, [0, 1, 3, 2])],
)
def test_a_lower_priority_begins_first_behind_what_has_waited_ten_seconds(
    priorities: list[int], waited: float, order: list[int]
) -> None:
    """Among equals the older. The first has `waited` when the others come."""
    driver = Driver(num_blocks=64, max_running=1)
    driver.add(0, prompt_of(5), max_tokens=6)
    driver.submit()
    for job, priority in enumerate(priorities, 1):
        driver.add(job, prompt_of(5, seed=job), max_tokens=3, priority=priority)
        driver.now = waited
    driver.assert_texts({job: prompt_of(5, seed=job) for job in range(1, len(order))}, 3)
    assert [job.message.id for job in driver.ended] == order


def test_equal_prompts_share_blocks_even_within_one_step() -> None:
    driver = Driver(num_blocks=32)
    for job in (1, 2, 3):
        driver.add(job, prompt_of(10), max_tokens=4)
    driver.submit()
    assert driver.submitted[0].lens == [10, 2, 2]
    driver.assert_texts(dict.fromkeys((1, 2, 3), prompt_of(10)), 4)
    assert driver.outputs[2][0].cached == 8
    assert driver.scheduler.usage().cached_tokens == 16


@pytest.mark.parametrize(("key", "generated"), [(0, 16), (1, 18)])
def test_only_requests_of_one_salt_share_blocks(key: int, generated: int) -> None:
    """Nor do those of one key share parts of blocks."""
    driver = Driver(num_blocks=64)
    salts = {1: "", 2: "ours", 3: "theirs", 4: "ours"}
    for job, salt in salts.items():
        driver.add(job, prompt_of(10), max_tokens=9, salt=salt, key=key)
        driver.drain()
        assert driver.text(job) == reference(prompt_of(10), 9)
    assert {job: driver.outputs[job][0].cached for job in salts} == {1: 0, 2: 0, 3: 0, 4: 8}
    for job, salt in ((5, "theirs"), (6, "else")):
        driver.add(job, prompt_of(10) + driver.text(4), max_tokens=2, salt=salt, key=key)
    driver.drain()
    assert (driver.outputs[5][0].cached, driver.outputs[6][0].cached) == (generated, 0)


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_the_oldest_is_served_without_a_break(stages: int) -> None:
    """The oldest request is never preempted, however crowded the cache is; and once it has ended,
    neither is the next."""
    driver = Driver(num_blocks=9, stages=stages)
    hope(driver.scheduler)
    prompts = driver.add_each((prompt_of(7, seed=job) for job in range(6)), 20)
    while len(driver.ended) < 6:
        oldest = next(iter(driver.scheduler._running), None)
        while driver.submit():
            driver.assert_ordered()
            if oldest is not None:
                assert oldest.status is Status.RUNNING
        driver.finish()
        assert [job.message.id for job in driver.ended] == list(range(len(driver.ended)))
    assert driver.scheduler.usage().preemptions > 0
    driver.assert_texts(prompts, 20)


def test_rows_of_a_job_that_the_client_ends_one_by_one_leave_nothing_behind() -> None:
    driver = Driver(num_blocks=16)
    job = driver.add_job(1, [[3]] * 3, max_tokens=5)
    for row in (-1, 3):
        assert driver.scheduler.abort(job, row) == 0
    for row in (0, 2, 1):
        driver.submit()
        driver.outbox.close_rows(job, driver.scheduler.abort(job, row))
        assert driver.scheduler.abort(job, row) == 0
    driver.drain()
    assert driver.ended == [job]
    assert not any(driver.scheduler._rows.num_jobs)


def test_micro_batches_of_a_pipeline_are_disjoint_and_even() -> None:
    driver = Driver(num_blocks=64, stages=2)
    prompts = driver.add_each((prompt_of(3, seed=job) for job in range(6)), 12)
    for _ in range(6):
        driver.turn()
    decodes = [b for b in driver.submitted[-6:] if all(length == 1 for length in b.lens)]
    assert decodes
    assert {len(batch.requests) for batch in decodes} == {3}
    driver.assert_texts(prompts, 12)


def test_the_simulation_notices_a_wrong_block() -> None:
    """The control of all tests above: a swapped block changes the text."""
    driver = Driver(num_blocks=16)
    driver.add(1, prompt_of(9), max_tokens=6)
    driver.submit()
    request = driver.submitted[0].requests[0]
    request.blocks[0], request.blocks[1] = request.blocks[1], request.blocks[0]
    slot = request.slot
    driver.submitted[0].updates += (slot, 0, request.blocks[0], slot, 1, request.blocks[1])
    driver.drain()
    assert driver.text(1)[0] == next_token(prompt_of(9)), "the first token came before the swap"
    driver.add(2, prompt_of(9), max_tokens=6)
    driver.drain()
    assert driver.text(2)[0] == reference(prompt_of(9), 1)[0]


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    """It is in the next step, and the long one goes on."""
    driver = Driver(2000, max_step_tokens=256)
    long, short = prompt_of(4000), prompt_of(20, seed=2)
    driver.add(1, long, 5)
    driver.step()
    driver.add(2, short, 1)
    batch = driver.step()
    jobs = jobs_in(batch)
    assert batch.lens[jobs.index(2)] == 20
    assert batch.lens[jobs.index(1)] >= 200
    driver.drain()
    assert (driver.text(1), driver.text(2)) == (reference(long, 5), reference(short, 1))
