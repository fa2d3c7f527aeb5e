"""Prompts that begin alike share what they share to the token, and only with whom they may."""

import random
from array import array

import numpy as np
import pytest

from engine_core.loop.jobs import Job
from engine_core.messages import GenerateJob, SamplingParams
from engine_core.schedulers.cost_model import Coefficients
from engine_core.schedulers.kv_cache import common_tokens
from engine_core.schedulers.request import Request
from tests.engine_core.driver import Driver, prompt_of
from tests.engine_core.simulated_model import ids, reference
from workers.contract.messages import DecodeStep, GenerateOutput, StepMask

_COMMON = prompt_of(250, seed=1)
_PROMPTS = [[*_COMMON, 40 + at, at] for at in range(6)]


def driver_of_128() -> Driver:
    return Driver(num_blocks=100, max_step_tokens=1024, block_size=128)


@pytest.mark.parametrize("key", [0, 1])
def test_prompts_of_one_list(key: int) -> None:
    driver = driver_of_128()
    driver.add_job(0, _PROMPTS, 3, key=key)
    driver.drain()
    assert driver.scheduler.usage().cached_tokens == 5 * 250
    for row, prompt in enumerate(_PROMPTS):
        assert driver.text(0, row) == reference(prompt, 3)


@pytest.mark.parametrize("at_once", [True, False])
def test_prompts_of_one_key(at_once: bool) -> None:
    driver = driver_of_128()
    for number, prompt in enumerate(_PROMPTS):
        driver.add(number, prompt, 3, key=7)
        if not at_once:
            driver.drain()
    driver.assert_texts(dict(enumerate(_PROMPTS)), 3)
    cached = driver.scheduler.usage().cached_tokens
    # Whole blocks are shared within a step: nobody waits a step for the rest of one.
    assert cached == 5 * 250 if not at_once else cached >= 5 * 128


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 2), (0, 1), (1, 0)])
@pytest.mark.parametrize("guessed", [100, 127, 130, 200, 249, 252])
def test_others_share_whole_blocks_only(guessed: int, first: int, second: int) -> None:
    """However much a stranger guesses of a prompt, `cached` says no more than whole blocks do."""
    driver = driver_of_128()
    driver.add(0, _PROMPTS[0], 3, key=first)
    driver.drain()
    driver.add(1, [*_PROMPTS[0][:guessed], 1, 2, 3], 3, key=second)
    driver.drain()
    assert driver.outputs[1][0].cached == guessed // 128 * 128


@pytest.mark.parametrize("length", [40, 100])
def test_a_conversation_goes_on_where_it_ended(length: int) -> None:
    """Without keys, if it is too long to be guessed."""
    driver = driver_of_128()
    prompt = prompt_of(length, seed=4)
    driver.add(0, prompt, 20)
    driver.drain()
    text = [*prompt, *driver.text(0)]
    driver.add(1, [*text, *prompt_of(9, seed=5)], 3)
    driver.drain()
    driver.add(2, [*text[:-3], 1, 2, 3], 3)
    driver.drain()
    assert driver.outputs[1][0].cached == (length + 19 if length + 19 > 64 else 0)
    assert driver.outputs[2][0].cached == 0, "it parts from the text before that ends"
    assert driver.text(1) == reference([*text, *prompt_of(9, seed=5)], 3)


@pytest.mark.parametrize(("fixed", "waits"), [(0.02, True), (0.2, False)])
def test_an_online_prompt_waits_where_that_saves_more_than_a_steps_fixed_time(
    fixed: float, waits: bool
) -> None:
    """250 tokens take 25 ms. The second prompt comes beside the first, which is not computed."""
    costs = Coefficients(step=fixed, token=1e-4, attended=0.0, context=0.0)
    driver = Driver(100, max_step_tokens=1024, block_size=500, costs=costs)
    driver.add_each(_PROMPTS[:2], 3, key=7)
    first = driver.step()
    assert len(first.requests) == (1 if waits else 2)
    driver.drain()
    assert driver.scheduler.usage().cached_tokens == (250 if waits else 0)


def test_an_online_prompt_waits_for_one_step_at_most() -> None:
    costs = Coefficients(step=1e-3, token=1e-4, attended=0.0, context=0.0)
    driver = Driver(400, max_step_tokens=64, steps_ahead=0, costs=costs)
    long = prompt_of(600, seed=3)
    driver.add(0, long, 1)
    driver.add(1, [*long[:599], 7], 1)
    driver.submit()
    driver.finish()
    assert not driver.scheduler._in_progress._leaders
    driver.drain()
    assert driver.text(1) == reference([*long[:599], 7], 1)


def test_what_waits_in_a_batch_is_not_before_a_request_of_a_client() -> None:
    driver = Driver(num_blocks=100, max_step_tokens=64, block_size=128)
    driver.add_each(_PROMPTS[:4], 3, batch=True)
    while not driver.scheduler._in_progress:
        driver.step()
    running = sum(driver.scheduler._running.unsubmitted)
    assert driver.scheduler.tokens_before(0) == running
    assert driver.scheduler.queued_tokens > running
    driver.add(9, _PROMPTS[0], 3)
    assert driver.scheduler.tokens_before(0) == running + len(_PROMPTS[0])
    driver.drain()


@pytest.mark.parametrize("ended", ["no", "running", "preempted"])
def test_who_repeats_scores_begins_after_the_row_that_has_them(ended: str) -> None:
    """Also where that row ends before, as a stop string or its client ends it."""
    most = 8 if ended == "preempted" else 64
    driver = Driver(num_blocks=100, max_step_tokens=most, steps_ahead=0)
    params = SamplingParams(max_tokens=3, prompt_logprobs=0)
    job = Job(b"client", GenerateJob(0, params=params, n=3), 3, 0)
    tokens = array("i", prompt_of(12, seed=6))
    first = Request(job, 0, params, tokens[:], max_len=15, seed=0)
    plain = SamplingParams(max_tokens=3)
    others = [
        Request(job, row, plain, tokens[:], max_len=15, seed=0, scored_by=first) for row in (1, 2)
    ]
    driver.scheduler.add(job, [first, *others])
    driver.submit()
    assert driver.submitted[0].requests == [first], "the others share too little to wait for it"
    if ended == "preempted":
        driver.finish()
        driver.scheduler._preempt(first)
    if ended != "no":
        driver.scheduler.abort(job, 0)
    driver.drain()
    begun = [request.row for batch in driver.submitted for request in batch.requests]
    assert begun.index(1) > 0
    assert len(driver.finishes(0)) == (3 if ended == "no" else 2)


def sharing(driver: Driver, prefix_len: int, owns: list[int]) -> tuple[list[Job], dict]:
    """Add rows of the batch band that share a prefix, and have own parts of these lengths. Returns
    their jobs and prompts."""
    prefix = prompt_of(prefix_len, seed=1000)
    prompts = {at: prefix + prompt_of(own, seed=at + 1) for at, own in enumerate(owns)}
    return [driver.add(at, prompt, 3, batch=True) for at, prompt in prompts.items()], prompts


def computed(driver: Driver) -> int:
    """Prompt tokens that steps have computed."""
    return sum(
        length
        for batch in driver.submitted
        for start, length, request in zip(batch.starts, batch.lens, batch.requests, strict=True)
        if start < request.prompt_len
    )


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("prefix_len", [18, 32, 48, 55, 64, 80])
def test_no_token_of_a_prefix_is_computed_twice(prefix_len: int, stages: int) -> None:
    driver = Driver(num_blocks=200, stages=stages, block_size=32)
    _, prompts = sharing(driver, prefix_len, owns=[1, 5, 4, 1, 7])
    driver.assert_texts(prompts, 3)
    assert computed(driver) == prefix_len + 18
    usage = driver.scheduler.usage()
    counted = usage.queried_tokens, usage.cached_tokens
    assert counted == (5 * prefix_len + 18, 4 * prefix_len)
    cached = [driver.outputs[number][0].cached for number in range(5)]
    assert cached == [0] + [prefix_len] * 4


def test_members_begin_after_the_step_that_computes_the_last_of_the_prefix() -> None:
    driver = Driver(num_blocks=200, max_step_tokens=8)
    sharing(driver, prefix_len=22, owns=[10, 2, 2])
    driver.drain()
    assert [batch.starts for batch in driver.submitted[:4]] == [[0], [8], [16], [24]]
    assert [len(batch.copies) for batch in driver.submitted[:5]] == [0, 0, 0, 0, 4]
    assert driver.submitted[4].starts[-2:] == [22, 22]


@pytest.mark.parametrize("steps", range(5))
@pytest.mark.parametrize("prefix_len", [3, 8, 22])
def test_an_aborted_leader_is_followed_by_the_next_member(steps: int, prefix_len: int) -> None:
    driver = Driver(num_blocks=200, max_step_tokens=8)
    jobs, prompts = sharing(driver, prefix_len, owns=[6, 2, 2])
    for _ in range(steps):
        if not driver.submit():
            driver.finish()
    driver.scheduler.abort(jobs[0])
    del prompts[0]
    driver.assert_texts(prompts, 3)


def test_a_preempted_leader_begins_again_and_others_share_it() -> None:
    driver = Driver(num_blocks=20, max_step_tokens=8)
    _, prompts = sharing(driver, prefix_len=22, owns=[6, 2, 2])
    driver.submit()
    prompts[3] = prompt_of(60, seed=9)
    driver.add(3, prompts[3], 3)
    driver.assert_texts(prompts, 3)
    assert driver.scheduler.usage().preemptions == 1


def test_a_member_that_alone_fills_the_cache_is_served() -> None:
    """What the group pins gives way."""
    driver = Driver(num_blocks=8)
    _, prompts = sharing(driver, prefix_len=6, owns=[23, 23, 23])
    driver.assert_texts(prompts, 3)


@pytest.mark.parametrize("broken", [{0}, {0, 1, 2, 3}, {2}])
def test_rows_that_are_not_finite_fail_one_by_one(
    monkeypatch: pytest.MonkeyPatch, broken: set[int]
) -> None:
    """The leader's, all of them, as behind a broken prefix, or a member's: each job has its own
    answer, and the others get their texts."""
    driver, prefix = Driver(num_blocks=60), prompt_of(21, seed=5)
    failed: list[int] = []
    monkeypatch.setattr(driver.outbox, "fail_not_finite", lambda job: failed.append(job.message.id))
    run = driver.pipeline._model.run

    def spoilt(step: DecodeStep, mask: StepMask | None = None) -> GenerateOutput:
        batch = driver.submitted[step.step]
        tokens = np.frombuffer(run(step, mask).tokens, np.int32).copy()
        rows = zip(batch.requests, batch.samples, strict=True)
        owners = [request.job.message.id for request, samples in rows if samples]
        tokens[np.isin(owners, list(broken))] = -1
        return GenerateOutput(step=step.step, tokens=tokens.tobytes())

    monkeypatch.setattr(driver.pipeline._model, "run", spoilt)
    driver.add_each(([*prefix, member] for member in range(4)), 5, batch=True)
    driver.drain()
    assert sorted(failed) == sorted(broken)
    for member in {0, 1, 2, 3} - broken:
        assert driver.text(member) == reference([*prefix, member], 5)


@pytest.mark.parametrize("lines", [2_000, pytest.param(50_000, marks=pytest.mark.long)])
def test_of_a_large_shuffled_file_nearly_all_that_can_be_is_shared(lines: int) -> None:
    """Lines that share instructions, of which many share a text behind them, sent as batches send
    them: sorted, and no more at a time than an engine takes."""
    numbers = random.Random(3)
    texts: list[list[int]] = []
    while len(texts) < lines:
        instruction = prompt_of(numbers.randint(60, 150), seed=len(texts))
        for _ in range(20):
            text = prompt_of(numbers.randint(20, 80), seed=len(texts) + lines)
            for _ in range(10):
                question = prompt_of(numbers.randint(4, 20), seed=len(texts) + 2 * lines)
                texts.append([*instruction, *text, *question])
    numbers.shuffle(texts)
    texts = sorted(texts[:lines])
    pairs = zip([[], *texts], texts, strict=False)
    savable = sum(common_tokens(ids(*one), ids(*other)) for one, other in pairs)
    driver = Driver(2_000, max_running=64, max_step_tokens=512, block_size=16)
    for number, text in enumerate(texts):
        while driver.scheduler.usage().waiting >= 1_024:
            driver.step()
            driver.submitted.clear()
        driver.add(number, text, 4, batch=True)
    driver.drain()
    assert driver.scheduler.usage().cached_tokens >= 0.98 * savable
