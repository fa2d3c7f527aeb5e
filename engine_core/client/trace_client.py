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
    """An engine never answers: it may be starting, or gone. The message names its model."""


def trace_engines(endpoints: Mapping[str, str], seconds: float) -> dict[str, list[TracedStep]]:
    """The steps that each engine begins and ends in the next `seconds`, in submit order, and
    MOST_STEPS at the most. `endpoints` are the engines' sockets for clients, by name. The trace of
    an engine that ends meanwhile has what came before, up to a second earlier.

    Raises NoAnswerError.
    """
    start_us = time.monotonic_ns() // 1000
    decoder = msgspec.msgpack.Decoder(TracedSteps)
    steps: dict[str, list[TracedStep]] = {name: [] for name in endpoints}
    context, sockets = zmq.Context(), dict[str, zmq.Socket[bytes]]()
    try:
        for name, endpoint in endpoints.items():
            socket = sockets[name] = context.socket(zmq.DEALER)
            socket.connect(endpoint)
            socket.send(msgspec.msgpack.encode([Trace(seconds)]))
        answering, answered = list(endpoints), set[str]()
        while answering:
            for name in list(answering):
                if not sockets[name].poll(int(_ANSWER_SECONDS * 1000)):
                    if name not in answered:
                        raise NoAnswerError(f"the engine of {name} does not answer")
                    answering.remove(name)
                    continue
                answered.add(name)
                answer = decoder.decode(sockets[name].recv())
                steps[name] += answer.steps
                if answer.over or len(steps[name]) >= MOST_STEPS:
                    answering.remove(name)
    finally:
        # All sockets, also one that Ctrl-C left half set up: an open one blocks a context's end.
        context.destroy(linger=0)
    return {
        name: [step for step in own[:MOST_STEPS] if step.times[0].start_us >= start_us]
        for name, own in steps.items()
    }
