"""Stages that are lost and started again under the loop: no token twice, none missing, no fault of
others answered for."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.executor.stage_start import WorkerLostError
from engine_core.loop.admission import QueueBound
from engine_core.loop.jobs import Job
from engine_core.loop.restarts import RESTART_WINDOW, Outage, RestartLimit, Suspects
from engine_core.messages import Beat, EncodeJob, GenerateJob, Hello, ReadJob, SamplingParams
from engine_core.refusal import RefusalError
from engine_core.schedulers.decoder import DecoderScheduler
from engine_core.schedulers.prefill_only import PrefillOnlyScheduler
from tests.engine_core.driver import Driver, prompt_of
from tests.engine_core.fake_transport import Engine
from tests.engine_core.grammars import GRAMMARS, reference_within
from tests.engine_core.integrity import check_blocks
from tests.engine_core.masked_driver import COMPILER, TOKENIZER
from tests.engine_core.simulated_model import ids, read_value, reference
from tests.engine_core.structured.test_structured_core import constrained, engine_of, job_of
from tests.engine_core.test_core import A, B, Ledger, generate

POISON = 13
OFTEN = 10**6


def lose_with(engine: Engine, poison: int = POISON) -> list[int]:
    """Have the stages be lost by each step with this prompt token. Counts the losses."""
    submit, losses = engine.executor.submit, []

    def submit_and_die(step) -> None:
        submit(step)
        if poison in np.frombuffer(step.tokens, np.int32):
            engine.executor.lost = True
            losses.append(step.step)

    engine.executor.submit = submit_and_die
    return losses


def iterate(engine: Engine, most: int = 20_000) -> None:
    """Until all jobs are over. Lost stages are ready after three iterations."""
    away = 0
    for _ in range(most):
        if engine.is_idle():
            return
        away = 0 if engine.executor.is_ready else (away + 1) % 3
        engine.executor.is_ready |= away == 2
        engine.iterate()
    raise AssertionError("the loop came to no end")


def survive(engine: Engine, data: st.DataObject) -> int:
    """Lose the stages now and then, until all jobs are over. Returns how often.

    Not while a suspect is computed alone: another loss would be its fault.
    """
    for _ in range(data.draw(st.integers(1, 6), "losses")):
        for _ in range(data.draw(st.integers(0, 12), "iterations")):
            engine.executor.is_ready |= data.draw(st.booleans(), "ready")
            engine.iterate()
        engine.executor.lost |= engine.core._losses.suspects.alone is None
    iterate(engine)
    return engine.executor.restarts


@settings(max_examples=60)
@given(data=st.data())
def test_texts_are_those_of_undisturbed_stages(word_tokenizer, data) -> None:
    stages = data.draw(st.integers(1, 3), "stages")
    engine = Engine(word_tokenizer, "LlamaForCausalLM", 24, num_stages=stages, max_restarts=OFTEN)
    prompts = data.draw(
        st.lists(st.lists(st.integers(0, 49), min_size=1, max_size=20), min_size=1, max_size=8)
    )
    for job, prompt in enumerate(prompts):
        engine.clients.put(data.draw(st.sampled_from([A, B])), generate(job, *prompt, max_tokens=9))
        engine.iterate()
    survive(engine, data)
    texts = Ledger(engine, A).tokens | Ledger(engine, B).tokens
    assert texts == {(job, 0): reference(prompt, 9) for job, prompt in enumerate(prompts)}
    engine.assert_idle()
    scheduler = engine.core._scheduler
    assert isinstance(scheduler, DecoderScheduler)
    check_blocks(scheduler.kv)


@settings(max_examples=20)
@given(data=st.data())
def test_texts_within_grammars_are_too(tmp_path_factory, data) -> None:
    folder: Path = tmp_path_factory.mktemp("model")
    TOKENIZER.raw.save(str(folder / "tokenizer.json"))
    engine = engine_of(folder, max_restarts=OFTEN)
    for job, grammar in enumerate(GRAMMARS):
        engine.clients.put(A, job_of(job, grammar))
    survive(engine, data)
    tokens = Ledger(engine).tokens
    for job, grammar in enumerate(GRAMMARS):
        expected, _ = reference_within(COMPILER, [3], constrained(grammar))
        assert tokens[job, 0] == expected
    engine.assert_idle()


@settings(max_examples=40)
@given(data=st.data())
def test_vectors_are_computed_again_once(word_tokenizer, data) -> None:
    engine = Engine(
        word_tokenizer, "BertModel", 0, num_stages=2, max_model_len=16, max_restarts=OFTEN
    )
    jobs = data.draw(st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=9), max_size=6))
    for job, lengths in enumerate(jobs):
        items = [ids(*range(14, 14 + n)) for n in lengths]
        engine.clients.put(A, EncodeJob(job, ids=items, batch=data.draw(st.booleans())))
        engine.iterate()
    survive(engine, data)
    vectors = Ledger(engine).vectors
    assert {key: vector[0] for key, vector in vectors.items()} == {
        (job, row): n for job, lengths in enumerate(jobs) for row, n in enumerate(lengths)
    }
    engine.assert_idle()
    scheduler = engine.core._scheduler
    assert isinstance(scheduler, PrefillOnlyScheduler)
    assert scheduler.queued_tokens == 0
    assert scheduler._budget._waiting == [0, 0, 0]
    assert scheduler._budget._whole_tokens == 0


def test_what_is_read_of_prompts_is_read_again(word_tokenizer) -> None:
    engine = Engine(word_tokenizer, "LlamaForCausalLM", 24, max_restarts=OFTEN)
    job = ReadJob(1, pieces=["w1 w2", "w3", "w4"], prompts=[(0, 1), (0, 2)], tokens=[ids(5)] * 2)
    engine.clients.put(A, job)
    engine.iterate_until(lambda: engine.core._in_flight)
    engine.executor.lost = True
    iterate(engine)
    vectors = Ledger(engine).vectors
    assert [vectors[1, row][0] for row in (0, 1)] == [
        read_value([1, 2, last], 5) for last in (3, 4)
    ]


@pytest.mark.parametrize("stages", [1, 2])
def test_who_ran_goes_on_before_who_waits_in_order(stages: int) -> None:
    driver = Driver(100, stages=stages, max_running=4)
    prompts = driver.add_each([prompt_of(6, seed) for seed in range(9)], max_tokens=12)
    for _ in range(6):
        driver.turn()
    running = [*driver.scheduler._running]
    assert len(running) == 4
    driver.scheduler.restart(driver.batches)
    driver.batches.clear()
    driver.pipeline._queue.clear()
    driver.assert_ordered()
    assert [*driver.scheduler._waiting.small][:4] == running
    assert driver.scheduler.usage().preemptions == 0
    assert driver.scheduler.kv.num_free == 100
    assert not any(group.block_of for group in driver.scheduler.kv.groups)
    driver.assert_texts(prompts, 12)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "BertModel"])
def test_a_request_that_kills_is_found_and_fails_alone(word_tokenizer, architecture: str) -> None:
    decodes = architecture == "LlamaForCausalLM"
    engine = Engine(
        word_tokenizer, architecture, 24 * decodes, max_model_len=64, max_restarts=3, num_stages=2
    )
    losses = lose_with(engine)
    prompts = {job: [job, POISON if job == 5 else 1, 2] for job in range(12)}
    for job, prompt in prompts.items():
        new = (
            generate(job, *prompt, max_tokens=6) if decodes else EncodeJob(job, ids=[ids(*prompt)])
        )
        engine.clients.put(A, new)
    iterate(engine)
    ledger = Ledger(engine)
    assert {job: failed.code for job, failed in ledger.failed.items()} == {5: "row_failed"}
    assert "stage 0: gone" in ledger.failed[5].message
    assert len(losses) == 3, "together twice, then alone"
    if decodes:
        expected = {(job, 0): reference(prompt, 6) for job, prompt in prompts.items() if job != 5}
        assert ledger.tokens == expected
    else:
        assert set(ledger.vectors) == {(job, 0) for job in prompts if job != 5}
    engine.assert_idle()
    served_before = len(losses)
    engine.clients.put(A, generate(99, 1, max_tokens=2) if decodes else EncodeJob(99, ids=[ids(1)]))
    iterate(engine)
    assert (99, 0) in Ledger(engine).finished
    assert len(losses) == served_before


def test_who_comes_while_suspects_run_alone_waits(word_tokenizer) -> None:
    """Of every kind: smaller ones would take the places of rows of a batch."""
    engine = Engine(word_tokenizer, "LlamaForCausalLM", 24, max_restarts=OFTEN)
    losses = lose_with(engine)
    for job in range(4):
        params = SamplingParams(max_tokens=4)
        prompt = ids(job, POISON if job == 1 else 2)
        engine.clients.put(A, GenerateJob(job, params=params, ids=[prompt], batch=True))
    later = iter(range(20, 50))
    for _ in range(2000):
        engine.executor.is_ready = True
        if len(losses) < 3 and (job := next(later, None)):
            engine.clients.put(B, generate(job, job, max_tokens=4))
        engine.iterate()
    assert engine.is_idle()
    assert set(Ledger(engine).failed) == {1}
    assert not Ledger(engine, B).failed
    assert len(losses) == 3


def test_a_request_that_gets_on_between_losses_is_not_at_fault(word_tokenizer) -> None:
    engine = Engine(word_tokenizer, "LlamaForCausalLM", 24, max_restarts=OFTEN)
    engine.clients.put(A, generate(1, 3, max_tokens=20))
    for count in range(1, 12):
        engine.iterate_until(
            lambda count=count: len(Ledger(engine).tokens.get((1, 0), [])) >= count
        )
        engine.executor.lost = True
        engine.iterate()
        engine.executor.is_ready = True
    iterate(engine)
    assert Ledger(engine).tokens[1, 0] == reference([3], 20)


def test_losses_with_nothing_in_flight_are_nobodys_fault(word_tokenizer) -> None:
    engine = Engine(word_tokenizer, "LlamaForCausalLM", 24, max_restarts=OFTEN)
    engine.clients.put(A, generate(1, 3, max_tokens=5))
    engine.executor.is_ready = False
    for _ in range(5):
        engine.executor.lost = True
        engine.run(2)
    iterate(engine)
    assert Ledger(engine).tokens[1, 0] == reference([3], 5)
    assert engine.told == [f"{restarts} stage 0: gone" for restarts in range(5)]


def test_one_loss_too_many_fails_all_and_ends_the_loop(word_tokenizer) -> None:
    engine = Engine(word_tokenizer, "LlamaForCausalLM", 24, max_restarts=2)
    engine.clients.put(A, generate(1, 3, max_tokens=50))
    for _ in range(2):
        engine.run(3)
        engine.executor.lost = True
        engine.run(2)
        engine.executor.is_ready = True
    engine.run(3)
    engine.executor.lost = True
    with pytest.raises(WorkerLostError):
        engine.core.run()
    failed = Ledger(engine).failed[1]
    assert (failed.code, failed.message) == ("engine_dead", "the engine stopped: stage 0: gone")
    assert len(engine.told) == 2


def test_clients_hear_of_a_loss_and_of_its_end_at_once(word_tokenizer) -> None:
    engine = Engine(word_tokenizer, "LlamaForCausalLM", 24, max_restarts=1)
    engine.clients.put(A, Hello())
    engine.run(2)
    engine.executor.lost = True
    engine.run(2)
    engine.executor.is_ready = True
    engine.run(2)
    beats = [beat for beat in engine.clients.beats(A) if isinstance(beat, Beat)]
    assert [(beat.restarts, beat.has_stages) for beat in beats] == [
        (0, True), (1, False), (1, True),
    ]  # fmt: skip
    assert beats[1].loss is not None
    assert beats[1].loss.why == "stage 0: gone"


def test_a_limit_counts_the_last_ten_minutes() -> None:
    limit = RestartLimit(2)
    times = [0.0, 1.0, 2.0, RESTART_WINDOW, RESTART_WINDOW + 0.5, RESTART_WINDOW + 1]
    assert [limit.allow(now) for now in times] == [True, True, False, True, False, True]
    assert not RestartLimit(0).allow(0.0)


def test_starts_that_never_end_are_counted_however_long_each_may_take() -> None:
    limit = RestartLimit(2, start_timeout=RESTART_WINDOW)
    losses = [number * (RESTART_WINDOW + 1) for number in range(3)]
    assert [limit.allow(now) for now in losses] == [True, True, False]


def test_a_start_that_will_take_too_long_refuses_what_comes() -> None:
    queue, outage = QueueBound("m", 30.0), Outage(60.0)
    queue.admit(10, outage.left(0.0))
    outage.begin(0.0, "gone")
    outage.begin(10.0, "gone again")
    with pytest.raises(RefusalError) as refused:
        queue.admit(10, outage.left(10.0))
    assert (refused.value.code, refused.value.retry_after) == ("overloaded", 50.0)
    queue.admit(10, outage.left(31.0))
    assert outage.end(45.0) == 45.0
    assert outage.left(45.0) == 0
    outage.begin(50.0, "gone")
    assert outage.left(50.0) == 45.0


def test_suspects_that_have_gone_are_passed_over() -> None:
    jobs = [Job(b"", generate(number, 1), 1, 1) for number in range(3)]
    suspects = Suspects()
    assert suspects.lost(jobs) is suspects.alone is None
    assert suspects.lost(jobs) is None
    assert suspects.alone is jobs[2]
    jobs[2].ended = True
    jobs[1].losses = 0  # it has had news
    assert suspects.alone is jobs[0]
    assert suspects.lost([jobs[0]]) is jobs[0]
    assert suspects.alone is None
