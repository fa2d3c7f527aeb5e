import asyncio
from operator import add, le

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from engine_core.refusal import RefusalError
from server.service.admission import Admission, Ticket, limits_per_process
from server.settings.server_config import Limits

LIMITS = Limits(max_requests=4, max_rows=40, max_tokens=400)


class AdmissionMachine(RuleBasedStateMachine):
    """Requests of two keys come, are corrected, end row by row and leave, some of them twice, in
    any order."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = (0, 0, 0)
        self.pool = Admission(LIMITS, ["m"], self.count).of("m")
        self.inside: list[Ticket] = []
        self.left: list[Ticket] = []

    def count(self, *counts: int) -> None:
        self.counted = counts

    def of_key(self, key: int) -> tuple[int, int, int]:
        own = [ticket for ticket in self.inside if ticket.key == key]
        return len(own), sum(t.rows for t in own), sum(t.tokens for t in own)

    @rule(rows=st.integers(1, 50), tokens=st.integers(0, 500), key=st.integers(0, 2))
    def come(self, rows, tokens, key):
        before, own, sent = self.counted, self.of_key(key), min(tokens, 60)
        more = (1, min(rows, 5), min(tokens, max(sent, 50)))
        most = (4, 40, 400)
        # However small it is, beside so few it is a large one: an eighth is left.
        part = 7 / 8 if before[0] else 1
        most_now = (4, 40 * part, 400 * part)
        fits = all(map(le, map(add, before, more), most_now))
        fits &= (
            not own[0]
            or not key
            or all(
                2 * (mine + new) <= limit for mine, new, limit in zip(own, more, most, strict=True)
            )
        )
        try:
            self.inside.append(self.pool.admit(rows=rows, tokens=tokens, sent=sent, key=key))
            assert fits
        except RefusalError as error:
            hopeless = rows > 40 or tokens > 400
            assert hopeless or not fits
            assert self.counted == before, "a refused request leaves no trace"
            assert error.code == ("too_large" if hopeless else "overloaded")

    @rule(choice=st.integers(0, 99), tokens=st.integers(0, 50))
    def correct(self, choice, tokens):
        if self.inside:
            self.inside[choice % len(self.inside)].correct(tokens)

    @rule(choice=st.integers(0, 99))
    def end_row(self, choice):
        if self.inside and (ticket := self.inside[choice % len(self.inside)]).rows:
            ticket.end_row()

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
        assert (len(self.inside), rows, tokens) == self.counted
        assert all(ticket.rows <= 5 for ticket in self.inside)


def test_what_is_in_flight_is_always_counted_right():
    run_state_machine_as_test(AdmissionMachine)


def ignore(*_: int) -> None:
    pass


def test_a_ticket_is_given_back_when_its_block_fails():
    counts: list[tuple[int, ...]] = []
    admission = Admission(LIMITS, ["m"], lambda *now: counts.append(now))
    with pytest.raises(ZeroDivisionError), admission.of("m").admit(rows=1, tokens=1):
        raise ZeroDivisionError
    assert counts == [(1, 1, 1), (0, 0, 0)]


def test_a_request_whose_rows_have_ended_holds_nobody_up():
    """Whether its answer is read or not."""
    pool = Admission(LIMITS, ["m"], ignore).of("m")
    unread = [pool.admit(rows=40, tokens=400, sent=40) for _ in range(4)]
    assert {(ticket.rows, ticket.tokens) for ticket in unread} == {(5, 50)}
    for ticket in unread:
        for _ in range(40):
            ticket.end_row()
        assert (ticket.rows, ticket.tokens) == (0, 0)
    unread[0].release()
    pool.admit(rows=40, tokens=400, sent=40)


def test_the_first_request_of_a_key_is_never_too_much_for_its_key():
    pool = Admission(Limits(max_requests=1, max_rows=40, max_tokens=400), ["m"], ignore).of("m")
    with pool.admit(rows=40, tokens=400, key=1):
        pass
    with pool.admit(rows=1, tokens=1, key=2), pytest.raises(RefusalError):
        pool.admit(rows=1, tokens=1, key=2)


def test_each_model_has_a_pool_of_its_own():
    admission = Admission(LIMITS, ["m", "other"], ignore)
    for _ in range(4):
        admission.of("m").admit(rows=1, tokens=1)
    with pytest.raises(RefusalError):
        admission.of("m").admit(rows=1, tokens=1)
    admission.of("other").admit(rows=1, tokens=1)


async def test_empty_waits_for_the_last_to_leave():
    admission = Admission(LIMITS, ["m", "other"], ignore)
    assert await admission.empty(0.01)
    first = admission.of("m").admit(rows=1, tokens=1)
    last = admission.of("other").admit(rows=1, tokens=1)
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
