"""Constrained rows among others: a mask for each step that needs one, and always the same text.
Masks may come after later steps: nothing but their own rows waits for them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.loop.jobs import Job
from engine_core.messages import Grammar, SamplingParams
from tests.engine_core.driver import jobs_in, prompt_of
from tests.engine_core.grammars import GRAMMARS, matches, reference_within
from tests.engine_core.masked_driver import COMPILER, STOPS, MaskedDriver, params_of
from tests.engine_core.simulated_model import next_token, reference

CHOICE, DIGITS, _, SCHEMA, LONG = GRAMMARS


def served(*jobs: SamplingParams, num_blocks: int = 64, stages: int = 1) -> MaskedDriver:
    """Constrained jobs, of which each has a prompt of its own, until all have ended."""
    driver = MaskedDriver(num_blocks=num_blocks, stages=stages)
    for job, params in enumerate(jobs):
        driver.constrain(job, prompt_of(5, job), params)
    driver.drain()
    return driver


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda g: g.source[:12])
def test_the_text_matches_and_is_the_reference(grammar: Grammar, stages: int) -> None:
    driver = served(*[params_of(grammar)] * 6, stages=stages)
    for job in range(6):
        text, finish = reference_within(COMPILER, prompt_of(5, job), params_of(grammar))
        assert (driver.text(job), driver.finish_reason(job)) == (text, finish)
        if finish == "stop":
            assert matches(grammar, driver.decoded(job))
    assert any(driver.finish_reason(job) == "stop" for job in range(6))


def test_a_step_without_constrained_rows_carries_and_owes_nothing() -> None:
    driver = MaskedDriver(num_blocks=64)
    driver.constrain(1, prompt_of(5), params_of(CHOICE))
    driver.add(2, prompt_of(5, 2), max_tokens=30)
    driver.drain()
    steps = [driver.scheduler.build(batch) for batch in driver.submitted[-5:]]
    assert {step.masked for step in steps} == {b""}
    assert driver.text(2) == reference(prompt_of(5, 2), 30)


def test_a_complete_text_ends_without_an_end_token() -> None:
    driver = served(params_of(DIGITS, ends=frozenset()))
    assert driver.finish_reason(0) == "stop"
    assert driver.outputs[0][-1].token == -1
    assert len(driver.decoded(0)) == 4


@pytest.mark.parametrize(("grammar", "finish"), [(SCHEMA, "length"), (CHOICE, "stop")])
def test_max_tokens_may_cut_the_text(grammar: Grammar, finish: str) -> None:
    """A text that is complete with its last token has stopped."""
    whole, _ = reference_within(COMPILER, prompt_of(5, 0), params_of(CHOICE, 9))
    driver = served(params_of(grammar, max_tokens=len(whole)))
    assert len(driver.text(0)) == len(whole)
    assert driver.finish_reason(0) == finish


def test_a_token_outside_the_grammar_fails_its_job_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = MaskedDriver(num_blocks=32)
    for job in (1, 2):
        driver.constrain(job, prompt_of(5, job), params_of(DIGITS))
    driver.submit()
    first, _ = driver.submitted[0].requests
    assert first.job.message.id == 1
    monkeypatch.setattr(first.matcher, "accept", lambda _: False)
    driver.drain()
    assert [(failed.id, failed.code) for failed in driver.failed] == [(1, "row_failed")]
    assert matches(DIGITS, driver.decoded(2))


def test_preemption_changes_no_text() -> None:
    params = params_of(LONG, max_tokens=20)
    driver = served(*[params] * 6, num_blocks=8)
    assert driver.scheduler.usage().preemptions > 0
    for job in range(6):
        assert driver.text(job) == reference_within(COMPILER, prompt_of(5, job), params)[0]


def test_the_simulation_notices_a_missing_mask() -> None:
    """The control of the tests above."""
    driver = MaskedDriver(num_blocks=16)
    driver.constrain(1, prompt_of(5), params_of(DIGITS))
    driver._send_masks = lambda: None
    driver.submit()
    with pytest.raises(AssertionError, match="mask was not waited for"):
        driver.finish()
    assert next_token(prompt_of(5), [7]) == 7


ACTIONS = st.sampled_from(["add", "submit", "submit", "finish", "finish", "abort"])
PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 14),
    eos_token_ids=st.sampled_from([STOPS, frozenset()]),
    ignore_eos=st.booleans(),
    grammar=st.none() | st.sampled_from(GRAMMARS),
)


@pytest.mark.parametrize("stages", [1, pytest.param(2, marks=pytest.mark.long), 3])
@settings(max_examples=60)
@given(data=st.data())
def test_any_schedule_gives_the_reference_text(stages: int, data: st.DataObject) -> None:
    """Random arrivals of free and constrained requests, aborts, budgets, cache sizes, timings."""
    driver = MaskedDriver(
        num_blocks=data.draw(st.integers(8, 20)),
        stages=stages,
        max_running=data.draw(st.integers(1, 5)),
        max_step_tokens=data.draw(st.integers(1, 40)),
    )
    jobs: dict[int, tuple[Job, list[int], SamplingParams]] = {}
    aborted: set[int] = set()
    for _ in range(data.draw(st.integers(5, 60))):
        action = data.draw(ACTIONS)
        if action == "add" and len(jobs) < 8:
            prompt = prompt_of(data.draw(st.integers(1, 18)), seed=data.draw(st.integers(0, 1)))
            params = data.draw(PARAMS)
            job = driver.constrain(len(jobs), prompt, params)
            jobs[job.message.id] = (job, prompt, params)
        elif action == "submit":
            driver.submit()
        elif action == "finish" and driver.batches:
            driver.finish()
        elif action == "abort" and jobs:
            chosen = data.draw(st.sampled_from(sorted(jobs)))
            if driver.scheduler.abort(jobs[chosen][0]):
                aborted.add(chosen)
    driver.drain()
    assert not driver.failed
    for job_id, (_, prompt, params) in jobs.items():
        if params.grammar is None:
            stops = frozenset() if params.ignore_eos else params.eos_token_ids
            expected, finish = reference(prompt, params.max_tokens or 0, stops), None
        else:
            expected, finish = reference_within(COMPILER, prompt, params)
        if job_id in aborted:
            assert driver.text(job_id) == expected[: len(driver.text(job_id))]
        else:
            assert driver.text(job_id) == expected
            assert finish in (None, driver.finish_reason(job_id))


ENDLESS = Grammar("regex", "[a-z]{100}", "regex")
"""25 tokens at least, unless `max_tokens` cuts it."""
TOKENS = 9


def driver_of(stages: int, constrained: range = range(0)) -> MaskedDriver:
    """Eight rows, some of them constrained; each gets `TOKENS`."""
    driver = MaskedDriver(num_blocks=128, stages=stages)
    for job in range(8):
        if job in constrained:
            driver.constrain(job, prompt_of(4, job), params_of(ENDLESS, TOKENS))
        else:
            driver.add(job, prompt_of(4, job), TOKENS)
    return driver


@pytest.mark.parametrize("constrained", [range(1), range(0, 8, 2), range(8)])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_constrained_rows_keep_the_pipeline_full(stages: int, constrained: range) -> None:
    """As many steps are in flight, of the same rows, as if no row were constrained."""
    driver, free = driver_of(stages, constrained), driver_of(stages)
    driver.fill()
    free.fill()
    assert len(driver.batches) > stages
    while driver.batches:
        assert [batch.step for batch in driver.batches] == [batch.step for batch in free.batches]
        driver.finish()
        assert not driver.pipeline.owed, "the masks that depend on the step that has ended"
        free.finish()
        driver.fill()
        free.fill()
    assert [*map(jobs_in, driver.submitted)] == [*map(jobs_in, free.submitted)]
    assert (driver.pipeline.most_owed > 1) == (stages > 1 and len(constrained) > 1)
    driver.assert_idle()
    for job in range(8):
        text = reference(prompt_of(4, job), TOKENS)
        if job in constrained:
            text, _ = reference_within(COMPILER, prompt_of(4, job), params_of(ENDLESS, TOKENS))
        assert driver.text(job) == text
        assert len(text) == TOKENS


def test_a_prompt_is_submitted_while_a_mask_is_owed() -> None:
    driver = MaskedDriver(num_blocks=32, stages=2)
    driver.constrain(1, prompt_of(5), params_of(ENDLESS, TOKENS))
    driver.fill()
    assert len(driver.batches) == 2
    assert driver.pipeline.owed == {1}
    driver.add(2, prompt_of(5, 2), TOKENS)
    assert driver.submit()
    assert jobs_in(driver.submitted[2]) == [2]
    driver.finish()
    assert not driver.pipeline.owed
    driver.drain()
    assert driver.text(1) == reference_within(COMPILER, prompt_of(5), params_of(ENDLESS, TOKENS))[0]


@pytest.mark.parametrize("aborted", [{0}, {1, 2}, {0, 1, 2}])
def test_a_step_gets_its_mask_though_rows_are_aborted(aborted: set[int]) -> None:
    driver = MaskedDriver(num_blocks=64, stages=2)
    params = params_of(ENDLESS, TOKENS)
    jobs = [driver.constrain(job, prompt_of(4, job), params) for job in range(3)]
    driver.fill()
    assert driver.pipeline.owed == {1, 2}
    for job in aborted:
        assert driver.scheduler.abort(jobs[job]) == 1
    driver.drain()
    assert not driver.pipeline.owed
    assert aborted.isdisjoint(driver.outputs)
    for job in {0, 1, 2} - aborted:
        text, finish = reference_within(COMPILER, prompt_of(4, job), params)
        assert (driver.text(job), driver.finish_reason(job)) == (text, finish)


def test_a_grammar_that_fails_frees_every_step_of_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows of one job are in two steps whose masks are owed; the first row's grammar fails."""
    driver = MaskedDriver(num_blocks=64, stages=2, max_running=16)
    params = params_of(ENDLESS, TOKENS)
    driver.constrain(0, prompt_of(4, 0), params, rows=2)
    driver.constrain(1, prompt_of(4, 1), params)
    driver.fill()
    assert driver.pipeline.owed == {1, 2}
    first = driver.submitted[1].requests[0]
    assert first.job.message.id == 0
    monkeypatch.setattr(first.matcher, "finish_mask", lambda mask: False)
    driver.drain()
    assert not driver.pipeline.owed
    assert [(failed.id, failed.code) for failed in driver.failed] == [(0, "row_failed")]
    assert driver.text(1) == reference_within(COMPILER, prompt_of(4, 1), params)[0]
