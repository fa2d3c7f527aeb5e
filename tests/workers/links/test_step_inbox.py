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


def test_a_mask_is_found_by_its_step_and_later_steps_wait_in_order(core: Core) -> None:
    last = encoder_step([[5, 6]])  # steps of encoders come the same way
    core.send(step(4), step(5), StepMask(5, b"five"), StepMask(4, b"four"), step(7), last)
    assert core.inbox.next_step() == step(4)
    assert core.inbox.take_mask(4) == StepMask(4, b"four")
    assert core.inbox.next_step() == step(5)
    core.send(StepMask(7, b"seven"))
    assert core.inbox.take_mask(5).bits == b"five"
    assert core.inbox.take_mask(7).bits == b"seven"
    assert [core.inbox.next_step() for _ in range(2)] == [step(7), last]
