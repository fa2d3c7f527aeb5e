"""Who is admitted to a socket of a cluster, and what is said of those who are not."""

import logging
from collections.abc import Iterator

import pytest
import zmq

from tests.patience import PATIENCE
from tests.workers.intruders import INTRUDERS, ZMQSocket
from workers.contract.curve import ClusterKeys, Refusals

KEYS = ClusterKeys.of(b"the secret of a cluster")


@pytest.fixture
def listener() -> Iterator[ZMQSocket]:
    context: zmq.Context[ZMQSocket] = zmq.Context()
    admission = KEYS.admission(context)
    socket = context.socket(zmq.PULL)
    KEYS.secure_listener(socket, endpoint := "tcp://127.0.0.1:*")
    socket.bind(endpoint)
    Refusals("the port").watch(socket)
    yield socket
    admission.stop()
    socket.close(0)
    context.term()  # which ends the thread that watches


def heard_by(listener: ZMQSocket, word: bytes) -> bytes:
    """Send a word with the secret."""
    context: zmq.Context[ZMQSocket] = zmq.Context()
    with context, context.socket(zmq.PUSH) as socket:
        endpoint = listener.get_string(zmq.LAST_ENDPOINT)
        ClusterKeys.of(b"the secret of a cluster").secure_connector(socket, endpoint)
        socket.connect(endpoint)
        socket.send(word)
        assert listener.poll(int(PATIENCE * 1e3))
        return listener.recv()


@pytest.mark.parametrize("intruder", INTRUDERS)
def test_only_who_has_the_secret_is_heard(
    listener: ZMQSocket, caplog: pytest.LogCaptureFixture, intruder: str
) -> None:
    endpoint = listener.get_string(zmq.LAST_ENDPOINT)
    heard: list[bytes] = []
    with caplog.at_level(logging.INFO):
        heard.append(heard_by(listener, b"before"))
        INTRUDERS[intruder](endpoint, KEYS)
        heard.append(heard_by(listener, b"after"))
    assert heard == [b"before", b"after"]
    assert not listener.poll(50)
    said = "connections that the port has refused since its start: 1 (of another secret, or none)"
    assert caplog.messages == [said]


def test_keys_follow_from_the_secret_alone() -> None:
    other = ClusterKeys.of(b"the secret of another cluster")
    assert ClusterKeys.of(b"the secret of a cluster") == KEYS
    pairs = [pair for keys in (KEYS, other) for pair in ((keys.listener, keys.connector))]
    assert len(set(pairs)) == 4


def test_refusals_are_logged_once_a_minute_and_none_is_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 1000.0
    refusals = Refusals("tcp://*:1", lambda: now)
    with caplog.at_level(logging.INFO):
        for seconds in (0.0, 0.1, 59.0, 0.95, 3.0, 0.5):
            now += seconds
            for event in (zmq.EVENT_ACCEPTED, zmq.EVENT_DISCONNECTED):
                refusals.note(event)
    said = "connections that tcp://*:1 has refused since its start: {} (of another secret, or none)"
    assert caplog.messages == [said.format(1), said.format(4)]
