"""The ledger: every byte is given back, and beyond the bound who holds most gives way."""

import asyncio
from collections.abc import Iterable

from hypothesis import example, given
from hypothesis import strategies as st

from engine_core.refusal import RefusalError
from server.service.ledger import REQUEST_BYTES, Ledger

MOST = 100 * REQUEST_BYTES


class Client:
    """A request in a task of its own, which holds what it is told to until it ends."""

    def __init__(self, ledger: Ledger, key: int = 0) -> None:
        self.key = key
        self._sizes: asyncio.Queue[int | None] = asyncio.Queue()
        self._account = ledger.account(key, "its part")
        self.task = asyncio.create_task(self._run())

    @property
    def held(self) -> int:
        return self._account.num_bytes

    @property
    def refused(self) -> bool:
        return self.task.done() and self.task.result() is not None

    async def hold(self, requests: float) -> None:
        """Its size in all, in bytes of that many requests."""
        self._sizes.put_nowait(int(requests * REQUEST_BYTES) - REQUEST_BYTES)
        await settled()

    async def end(self) -> None:
        self._sizes.put_nowait(None)
        await settled()

    async def _run(self) -> RefusalError | None:
        try:
            with self._account:
                while (size := await self._sizes.get()) is not None:
                    self._account.hold(size)
        except RefusalError as refusal:
            return refusal
        return None


async def settled() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def clients(ledger: Ledger, *sizes: float, key: int = 0) -> list[Client]:
    made = [Client(ledger, key) for _ in sizes]
    await settled()
    for client, size in zip(made, sizes, strict=True):
        await client.hold(size)
    return made


def refused(some: Iterable[Client]) -> list[bool]:
    return [client.refused for client in some]


async def test_the_largest_gives_way_whoever_asks_for_more() -> None:
    ledger = Ledger(MOST)
    several = await clients(ledger, 30, 40, 30)
    assert ledger.num_bytes == MOST
    several += await clients(ledger, 2)
    assert refused(several) == [False, True, False, False]
    error = several[1].task.result()
    assert error is not None
    assert error.code == "overloaded"
    assert f"{MOST} bytes, {40 * REQUEST_BYTES} of them for its part" in error.message
    await several[3].hold(60)
    assert refused(several) == [False, True, False, True], "it is the largest itself"
    assert ledger.num_bytes == 60 * REQUEST_BYTES


async def test_of_equals_the_last_to_come_gives_way() -> None:
    ledger = Ledger(MOST)
    several = await clients(ledger, *[1] * 101)
    assert refused(several) == [False] * 100 + [True]


async def test_the_key_that_holds_most_gives_way() -> None:
    ledger = Ledger(MOST)
    honest = await clients(ledger, 40, key=1)
    greedy = await clients(ledger, *[10] * 6, key=2)
    assert refused([*honest, *greedy]) == [False] * 7
    await honest[0].hold(45)
    assert refused([*honest, *greedy]) == [False] * 6 + [True]


async def test_one_alone_may_have_more() -> None:
    ledger = Ledger(MOST)
    (alone,) = await clients(ledger, 150)
    assert refused([alone, *await clients(ledger, 1)]) == [True, False]


async def test_answers_that_are_not_read_give_way_where_they_are_more() -> None:
    ledger = Ledger(MOST)
    excesses: list[int] = []
    ledger.cut_unread = excesses.append
    several = await clients(ledger, 20, 20)
    ledger.unread = 59 * REQUEST_BYTES
    several += await clients(ledger, 3)
    assert excesses == [2 * REQUEST_BYTES]
    ledger.unread = 42 * REQUEST_BYTES
    await several[2].hold(30)
    assert refused(several) == [False, False, True]
    assert len(excesses) == 1


async def test_who_is_refused_and_cancelled_is_cancelled() -> None:
    ledger = Ledger(MOST)
    (large,) = await clients(ledger, 99)
    others = [Client(ledger) for _ in range(2)]
    large.task.cancel()
    await settled()
    assert large.task.cancelled()
    assert refused(others) == [False, False]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.integers(0, 2)),
        st.tuples(st.just("hold"), st.integers(0, 9), st.floats(1, 120)),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("leave"), st.integers(0, 9)),
        st.tuples(st.just("unread"), st.integers(0, 120)),
    ),
    max_size=40,
)


class Flood:
    """Clients that come, grow, end and leave, beside answers that are not read."""

    def __init__(self) -> None:
        self.ledger = Ledger(MOST)
        self.ledger.cut_unread = self.cut
        self.all: list[Client] = []

    def cut(self, excess: int) -> None:
        assert excess > 0
        self.ledger.unread -= min(excess, self.ledger.unread)

    @property
    def inside(self) -> list[Client]:
        return [client for client in self.all if not client.task.done()]

    async def step(self, kind: str, number: int, size: float = 0) -> None:
        inside = self.inside
        if kind == "come":
            self.all.append(Client(self.ledger, number))
        elif kind == "unread":
            self.ledger.unread = number * REQUEST_BYTES
            self.ledger.make_room()
        elif inside and kind == "hold":
            await inside[number % len(inside)].hold(size)
        elif inside and kind == "end":
            await inside[number % len(inside)].end()
        elif inside:
            inside[number % len(inside)].task.cancel()
        await settled()
        self.check()

    def check(self) -> None:
        ledger, held = self.ledger, [client.held for client in self.inside]
        assert all(held)
        assert ledger.num_bytes == sum(held) + ledger.unread
        assert ledger.num_bytes <= MOST or len(held) == 1
        assert not any(client.held for client in self.all if client.task.done())


@given(steps)
@example([("come", 0), ("hold", 0, 101.0), ("unread", 101), ("end", 0)])
def test_whatever_happens_every_byte_is_given_back(steps) -> None:
    async def run() -> None:
        flood = Flood()
        for step in steps:
            await flood.step(*step)
        for client in flood.inside:
            await client.end()
        flood.ledger.unread = 0
        assert flood.ledger.num_bytes == 0
        assert not flood.inside

    asyncio.run(run())
