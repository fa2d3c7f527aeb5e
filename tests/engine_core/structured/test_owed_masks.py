"""Masks that come after later steps: nothing but their own rows waits for them."""

import pytest

from engine_core.messages import Grammar
from tests.engine_core.driver import jobs_in, prompt_of
from tests.engine_core.grammars import reference_within
from tests.engine_core.masked_driver import COMPILER, MaskedDriver, params_of
from tests.engine_core.simulated_model import reference

LONG = Grammar("regex", "[a-z]{100}", "regex")
"""25 tokens at least, unless `max_tokens` cuts it."""
TOKENS = 9


def driver_of(stages: int, constrained: range = range(0)) -> MaskedDriver:
    """Eight rows, some of them constrained; each gets `TOKENS`."""
    driver = MaskedDriver(num_blocks=128, stages=stages)
    for job in range(8):
        if job in constrained:
            driver.constrain(job, prompt_of(4, job), params_of(LONG, TOKENS))
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
            text, _ = reference_within(COMPILER, prompt_of(4, job), params_of(LONG, TOKENS))
        assert driver.text(job) == text
        assert len(text) == TOKENS


def test_a_prompt_is_submitted_while_a_mask_is_owed() -> None:
    driver = MaskedDriver(num_blocks=32, stages=2)
    driver.constrain(1, prompt_of(5), params_of(LONG, TOKENS))
    driver.fill()
    assert len(driver.batches) == 2
    assert driver.pipeline.owed == {1}
    driver.add(2, prompt_of(5, 2), TOKENS)
    assert driver.submit()
    assert jobs_in(driver.submitted[2]) == [2]
    driver.finish()
    assert not driver.pipeline.owed
    driver.drain()
    assert driver.text(1) == reference_within(COMPILER, prompt_of(5), params_of(LONG, TOKENS))[0]


@pytest.mark.parametrize("aborted", [{0}, {1, 2}, {0, 1, 2}])
def test_a_step_gets_its_mask_though_rows_are_aborted(aborted: set[int]) -> None:
    driver = MaskedDriver(num_blocks=64, stages=2)
    params = params_of(LONG, TOKENS)
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
    params = params_of(LONG, TOKENS)
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
