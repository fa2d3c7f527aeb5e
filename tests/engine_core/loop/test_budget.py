"""The bound on work in flight, where jobs of two keys come, end row by row and leave."""

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from engine_core.loop.admission import Budget, InFlight
from engine_core.loop.jobs import Job
from engine_core.messages import GenerateJob, KeyShare, SamplingParams
from engine_core.refusal import RefusalError

ROWS, TOKENS = 40, 400
ROWS_OF_ONE, TOKENS_OF_ONE = 5, 50
"""The most that one job counts: an eighth; but as many tokens as were sent."""


def message(rows: int, sent: int = 1, key: int = 0) -> GenerateJob:
    """`rows` choices of a prompt of so many tokens."""
    ids = [bytes(4 * sent)]
    return GenerateJob(1, params=SamplingParams(), ids=ids, n=rows, key=KeyShare(key))


def counts(jobs: list[Job]) -> InFlight:
    rows, tokens = (sum(job.counted_rows for job in jobs), sum(job.counted_tokens for job in jobs))
    return InFlight(len(jobs), rows, tokens)


class BudgetMachine(RuleBasedStateMachine):
    """In any order."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget(ROWS, TOKENS)
        self.inside: list[Job] = []

    def fits(self, rows: int, tokens: int, key: int) -> bool:
        # However small it is, beside so few it is a large one: an eighth is left.
        part = 7 / 8 if self.inside else 1.0
        held = counts(self.inside)
        fits = held.rows + rows <= ROWS * part and held.tokens + tokens <= TOKENS * part
        own = [job for job in self.inside if job.message.key.number == key]
        if key and own:
            held = counts(own)
            fits &= 2 * (held.rows + rows) <= ROWS and 2 * (held.tokens + tokens) <= TOKENS
        return fits

    @rule(rows=st.integers(1, 50), sent=st.integers(1, 60), key=st.integers(0, 2))
    def come(self, rows, sent, key):
        before = self.budget.held
        before = InFlight(before.jobs, before.rows, before.tokens)
        hopeless = rows > ROWS or rows * sent > TOKENS
        share = min(rows, ROWS_OF_ONE), min(rows * sent, max(sent, TOKENS_OF_ONE))
        if rows <= ROWS_OF_ONE and rows * sent <= TOKENS_OF_ONE:
            share = rows, rows * sent
        fits = self.fits(*share, key)
        try:
            self.inside.append(self.budget.admit(b"", message(rows, sent, key)))
            assert fits
        except RefusalError as refusal:
            assert hopeless or not fits
            assert self.budget.held == before, "a refused job leaves no trace"
            assert refusal.code == ("too_large" if hopeless else "overloaded")

    @rule(choice=st.integers(0, 99), tokens=st.integers(0, 50))
    def correct(self, choice, tokens):
        if self.inside:
            job = self.inside[choice % len(self.inside)]
            job.cost = tokens
            self.budget.changed(job)

    @rule(choice=st.integers(0, 99))
    def end_row(self, choice):
        if self.inside and (job := self.inside[choice % len(self.inside)]).open_rows:
            job.open_rows -= 1
            self.budget.changed(job)

    @rule(choice=st.integers(0, 99))
    def leave(self, choice):
        if self.inside:
            self.budget.release(self.inside.pop(choice % len(self.inside)))

    @invariant()
    def the_counts_are_those_inside(self):
        assert self.budget.held == counts(self.inside)
        assert all(job.counted_rows <= ROWS_OF_ONE for job in self.inside)


def test_what_is_in_flight_is_always_counted_right() -> None:
    run_state_machine_as_test(BudgetMachine, settings=settings(max_examples=40))


def test_a_keys_batch_leaves_the_key_what_it_may_have() -> None:
    budget = Budget(ROWS, TOKENS)
    for _ in range(5):
        line = message(ROWS_OF_ONE, key=1)
        budget.admit(b"batch", msgspec.structs.replace(line, batch=True))
    jobs = [budget.admit(b"client", message(ROWS_OF_ONE, key=1)) for _ in range(2)]
    assert budget.held.rows == 7 * ROWS_OF_ONE
    for job in jobs:
        budget.release(job)
    assert budget.held.rows == 5 * ROWS_OF_ONE
