"""Asks running engines for the times of their steps."""

import time
from collections.abc import Mapping

import msgspec
import zmq

from engine_core.messages import Trace, TracedStep, TracedSteps

MOST_STEPS = 100_000
"""Most steps of one engine in a trace. More would be too many for any viewer."""

_ANSWER_SECONDS = 5.0
"""The longest wait for an engine, which answers every second."""


class NoAnswerError(Exception):
    """An engine does not answer: `name` says which. It may be starting, or gone."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the engine of {name} does not answer")


class _TracedEngine:
    """One engine's answers so far. `heard` is when the last one came."""

    def __init__(self, socket: zmq.Socket[bytes], seconds: float) -> None:
        self.socket = socket
        self.steps: list[TracedStep] = []
        self.over = False
        self.heard = time.monotonic()
        self._decoder = msgspec.msgpack.Decoder(TracedSteps)
        socket.send(msgspec.msgpack.encode(Trace(seconds)))

    def receive(self) -> None:
        answer = self._decoder.decode(self.socket.recv())
        self.heard = time.monotonic()
        self.steps += answer.steps
        self.over = answer.over or len(self.steps) >= MOST_STEPS


def trace_engines(endpoints: Mapping[str, str], seconds: float) -> dict[str, list[TracedStep]]:
    """The steps that each engine begins and ends in the next `seconds`, in submit order, and
    MOST_STEPS at the most. `endpoints` are the engines' sockets for clients, by name.

    Raises NoAnswerError.
    """
    start_us = time.monotonic_ns() // 1000
    context = zmq.Context()
    try:
        poller, engines = zmq.Poller(), dict[str, _TracedEngine]()
        for name, endpoint in endpoints.items():
            socket = context.socket(zmq.DEALER)
            socket.connect(endpoint)
            poller.register(socket, zmq.POLLIN)
            engines[name] = _TracedEngine(socket, seconds)
        while not all(engine.over for engine in engines.values()):
            ready = dict(poller.poll(int(_ANSWER_SECONDS * 1000)))
            for name, engine in engines.items():
                if engine.socket in ready:
                    engine.receive()
                elif not engine.over and time.monotonic() - engine.heard > _ANSWER_SECONDS:
                    raise NoAnswerError(name)
    finally:
        # All sockets, also one that Ctrl-C left half set up: an open one blocks a context's end.
        context.destroy(linger=0)
    return {
        name: [step for step in engine.steps[:MOST_STEPS] if step.times[0].start_us >= start_us]
        for name, engine in engines.items()
    }
