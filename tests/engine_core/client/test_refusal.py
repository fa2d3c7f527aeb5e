"""A refusal is one value, and whoever keeps it ties no frames into a cycle."""

import gc
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from engine_core.client.engine_client import CircuitBreaker, EngineClient
from engine_core.client.pending_jobs import GenerateStream, Outcome
from engine_core.messages import SamplingParams
from engine_core.refusal import RefusalError

FIELDS = ("overloaded", "the queue is full", "prompt[1]", 2.5)

Ask = Callable[[], Awaitable[object] | None]


class Texts:
    """What a request holds while it waits."""


def of_an_outcome() -> Ask:
    outcome: Outcome[None] = Outcome()
    outcome.set(RefusalError(*FIELDS))
    return lambda: outcome


def of_a_stream() -> Ask:
    stream = GenerateStream(1, 1, lambda _: None, lambda _: None)
    stream.fail(RefusalError(*FIELDS))
    return stream.next


def of_a_breaker() -> Ask:
    breaker = CircuitBreaker(lambda: 0.0)
    breaker.refused(0, RefusalError(*FIELDS))
    return lambda: breaker.check(0)


def of_a_client() -> Ask:
    client = EngineClient("ipc://nowhere")
    client.abort_all(RefusalError(*FIELDS))
    return lambda: client.generate(SamplingParams(), texts=["a"])


@pytest.mark.parametrize("keeper", [of_an_outcome, of_a_stream, of_a_breaker, of_a_client])
async def test_a_refusal_that_is_kept_is_raised_without_the_frames_of_others(
    keeper: Callable[[], Ask],
) -> None:
    ask = keeper()
    texts_of_each: list[weakref.ref[Texts]] = []

    async def request() -> None:
        texts = Texts()
        texts_of_each.append(weakref.ref(texts))
        with suppress(RefusalError):
            if (answer := ask()) is not None:
                await answer
            pytest.fail("it is refused")

    gc.disable()
    try:
        for _ in range(2):
            await request()
        assert [texts() for texts in texts_of_each] == [None, None]
    finally:
        gc.enable()
