"""Masks reach the steps that they belong to, whatever comes between them."""

from collections.abc import Iterator

import msgspec
import pytest
import zmq

from tests.workers.step_maker import encoder_step
from workers.contract.messages import AllocateKV, DecodeStep, StepMask, ToWorker
from workers.links.engine_link import EngineLink, StepInbox


class Core:
    """An engine core's socket and the inbox of the one stage that is connected to it."""

    def __init__(self, router: zmq.Socket[bytes], inbox: StepInbox) -> None:
        self._router, self.inbox = router, inbox

    def send(self, *messages: ToWorker) -> None:
        for message in messages:
            self._router.send_multipart([b"stage-0", msgspec.msgpack.encode(message)])


@pytest.fixture
def core() -> Iterator[Core]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    link = EngineLink(context, f"tcp://127.0.0.1:{port}", 0)
    link.send(AllocateKV(0))  # type: ignore[arg-type]
    router.recv_multipart()
    yield Core(router, StepInbox(link))
    context.destroy(0)


def step(number: int) -> DecodeStep:
    return DecodeStep(step=number, tokens=b"", query_lens=b"", slots=b"", starts=b"", sample=b"")


def test_later_steps_wait_in_order_while_a_mask_is_awaited(core: Core) -> None:
    core.send(step(4), step(5), step(6), StepMask(4, b"four"), step(7))
    assert core.inbox.next_step() == step(4)
    assert core.inbox.take_mask(4) == StepMask(4, b"four")
    assert [core.inbox.next_step().step for _ in range(3)] == [5, 6, 7]


def test_masks_are_found_by_their_step(core: Core) -> None:
    last = encoder_step([[5, 6]])  # steps of encoders come the same way
    core.send(step(0), step(1), StepMask(1, b"one"), StepMask(0, b"zero"), last)
    for number, bits in enumerate((b"zero", b"one")):
        assert core.inbox.next_step().step == number
        assert core.inbox.take_mask(number).bits == bits
    assert core.inbox.next_step() == last
