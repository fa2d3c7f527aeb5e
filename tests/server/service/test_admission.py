import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from server.errors import APIError
from server.service.admission import Admission, Ticket, limits_per_process
from server.settings.server_config import Limits

LIMITS = Limits(max_requests=4, max_rows=10, max_tokens=100)


class AdmissionMachine(RuleBasedStateMachine):
    """Requests come, are corrected and leave, some of them twice, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = (0, 0, 0)
        self.admission = Admission(LIMITS, self.count)
        self.inside: list[Ticket] = []
        self.left: list[Ticket] = []

    def count(self, *counts: int) -> None:
        self.counted = counts

    @rule(rows=st.integers(1, 12), tokens=st.integers(0, 120))
    def come(self, rows, tokens):
        before = self.counted
        fits = before[0] < 4 and before[1] + rows <= 10 and before[2] + tokens <= 100
        try:
            self.inside.append(self.admission.admit(rows=rows, tokens=tokens))
            assert fits
        except APIError as error:
            assert not fits
            assert self.counted == before, "a refused request leaves no trace"
            hopeless = rows > 10 or tokens > 100
            assert error.code == ("too_large" if hopeless else "overloaded")

    @rule(choice=st.integers(0, 99), tokens=st.integers(0, 50))
    def correct(self, choice, tokens):
        if self.inside:
            self.inside[choice % len(self.inside)].correct(tokens)

    @rule(choice=st.integers(0, 99))
    def leave(self, choice):
        if self.inside:
            ticket = self.inside.pop(choice % len(self.inside))
            ticket.release()
            self.left.append(ticket)

    @rule(choice=st.integers(0, 99))
    def leave_again(self, choice):
        if self.left:
            ticket = self.left[choice % len(self.left)]
            ticket.correct(77)
            ticket.release()

    @invariant()
    def the_counts_are_those_inside(self):
        rows = sum(ticket.rows for ticket in self.inside)
        tokens = sum(ticket.tokens for ticket in self.inside)
        counts = (self.admission.requests, self.admission.rows, self.admission.tokens)
        assert counts == (len(self.inside), rows, tokens) == self.counted


def test_what_is_in_flight_is_always_counted_right():
    run_state_machine_as_test(AdmissionMachine)


def ignore(*_: int) -> None:
    pass


def test_a_ticket_is_given_back_when_its_block_fails():
    admission = Admission(LIMITS, ignore)
    with pytest.raises(ZeroDivisionError), admission.admit(rows=1, tokens=1):
        raise ZeroDivisionError
    assert admission.requests == 0


async def test_empty_waits_for_the_last_to_leave():
    admission = Admission(LIMITS, ignore)
    assert await admission.empty(0.01)
    first, last = admission.admit(rows=1, tokens=1), admission.admit(rows=1, tokens=1)
    assert not await admission.empty(0.01)
    waiting = asyncio.create_task(admission.empty(5))
    first.release()
    await asyncio.sleep(0)
    assert not waiting.done()
    last.release()
    assert await waiting


@given(processes=st.integers(1, 5000), limit=st.integers(1, 20_000))
def test_a_share_is_a_part_that_still_takes_one_whole_request(processes, limit):
    limits = Limits(max_requests=limit, max_rows=limit, max_tokens=limit)
    part = limits_per_process(limits, processes)
    assert 1 <= part.max_requests <= limit
    assert part.max_rows == min(limit, max(limit // processes, 2048))
    assert part.max_tokens == limit  # one body may hold them all
    assert part.max_requests * processes <= max(limit, processes)
