"""Masks reach the steps that they belong to, whatever comes between them."""

from collections.abc import Callable, Iterator

import msgspec
import pytest
import zmq

from tests.engine_core.configs import execution_config
from tests.workers.step_maker import encoder_step
from workers.contract.messages import AllocateKV, DecodeStep, StepMask, ToWorker
from workers.links.engine_link import EngineLink, StepInbox

Send = Callable[..., None]


@pytest.fixture
def core() -> Iterator[tuple[Send, StepInbox]]:
    """What an engine core sends by, and the inbox of the one stage that is connected to it."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    config = execution_config(worker_endpoint=f"tcp://127.0.0.1:{port}")
    link = EngineLink(context, config, 0)
    link.send(AllocateKV(0))  # type: ignore[arg-type]
    router.recv_multipart()

    def send(*messages: ToWorker) -> None:
        for message in messages:
            router.send_multipart([b"stage-0-0", msgspec.msgpack.encode(message)])

    yield send, StepInbox(link)
    context.destroy(0)


def step(number: int) -> DecodeStep:
    return DecodeStep(step=number, tokens=b"", query_lens=b"", slots=b"", starts=b"", sample=b"")


def test_a_mask_is_found_by_its_step_and_later_steps_wait_in_order(
    core: tuple[Send, StepInbox],
) -> None:
    send, inbox = core
    last = encoder_step([[5, 6]])  # steps of encoders come the same way
    send(step(4), step(5), StepMask(5, b"five"), StepMask(4, b"four"), step(7), last)
    assert inbox.next_step() == step(4)
    assert inbox.take_mask(4) == StepMask(4, b"four")
    assert inbox.next_step() == step(5)
    send(StepMask(7, b"seven"))
    assert inbox.take_mask(5).bits == b"five"
    assert inbox.take_mask(7).bits == b"seven"
    assert [inbox.next_step() for _ in range(2)] == [step(7), last]
