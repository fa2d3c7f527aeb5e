"""What requests hold: bodies that wait to be decoded, texts that are tokenized."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from engine_core.refusal import RefusalError
from server.api.tokenize import tokenizing
from server.http.body import looked_at, whole_body
from server.observe.request_record import RequestRecord
from server.service.decoding_turns import LARGE_BYTES, DecodingTurns
from server.service.ledger import REQUEST_BYTES, Ledger
from server.service.service import InFlight

SIZE = LARGE_BYTES + 1
RECORD = RequestRecord(request_id="", started=0.0)


def service_of(max_bytes: int) -> Any:
    return SimpleNamespace(
        limits=SimpleNamespace(max_body_size=SIZE),
        ledger=Ledger(max_bytes),
        decoding=DecodingTurns(),
        in_flight=InFlight(lambda _: None),
    )


def request(service: Any) -> Request:
    """One whose body is there as a whole."""

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b" " * SIZE, "more_body": False}

    state = {"body_has_come": True}
    scope = {"type": "http", "headers": [], "state": state, "service": service, "record": RECORD}
    return Request(scope, receive)


async def test_bodies_are_held_until_they_are_decoded() -> None:
    service = service_of(10 * SIZE)
    service.decoding._taken = True
    waiting = [asyncio.create_task(whole_body(request(service))) for _ in range(3)]
    await asyncio.sleep(0)
    assert service.ledger.num_bytes == 3 * (SIZE + REQUEST_BYTES)
    waiting.pop().cancel()
    await asyncio.sleep(0)
    assert service.ledger.num_bytes == 2 * (SIZE + REQUEST_BYTES)
    service.decoding._next()
    assert {len(body) for body in await asyncio.gather(*waiting)} == {SIZE}
    assert service.ledger.num_bytes == 0


async def test_too_many_that_wait_to_be_decoded_are_refused() -> None:
    service = service_of(2 * SIZE)
    service.decoding._taken = True
    waiting = [asyncio.create_task(whole_body(request(service))) for _ in range(3)]
    await asyncio.sleep(0.01)
    service.decoding._next()
    ends = await asyncio.gather(*waiting, return_exceptions=True)
    refusals = [end for end in ends if isinstance(end, RefusalError)]
    assert {refusal.code for refusal in refusals} == {"overloaded"}
    assert len(refusals) == 2
    assert "for the body of this request" in refusals[0].message
    assert service.ledger.num_bytes == 0


async def test_a_body_that_is_looked_at_before_it_is_read_has_one_turn() -> None:
    service = service_of(10 * SIZE)
    asked = request(service)
    raw = await looked_at(asked)
    assert service.decoding._taken
    # Nobody ends the turn: another one would never come.
    assert await asyncio.wait_for(whole_body(asked), 1) is raw
    assert "penstock.body" not in asked.scope


async def test_texts_are_held_while_they_are_tokenized() -> None:
    service = service_of(2 * REQUEST_BYTES + 100)
    with tokenizing(request(service), ["é", "b"]):
        assert service.ledger.num_bytes == REQUEST_BYTES + 3
        second = tokenizing(request(service), ["x" * 98])
        with pytest.raises(RefusalError, match="for texts to tokenize") as refusal, second:
            pass
        assert refusal.value.code == "overloaded"
    assert service.ledger.num_bytes == 0
