"""A worker's ZMQ sockets: to its engine core, and for sampled tokens to the first stage."""

from collections import deque
from collections.abc import Callable

import msgspec
import numpy as np
import zmq

from workers.contract.config import ExecutionConfig
from workers.contract.curve import Refusals
from workers.contract.messages import (
    DecodeStep,
    EncodeStep,
    FromWorker,
    GenerateOutput,
    LinkName,
    SampledTokens,
    StepInput,
    StepMask,
    StepOutput,
    ToWorker,
)
from workers.step.rows import IntArray

ZMQContext = zmq.Context[zmq.Socket[bytes]]


def _connect(socket: zmq.Socket[bytes], config: ExecutionConfig, endpoint: str) -> None:
    """Connect, encrypted where the stages are on several hosts."""
    if config.cluster_keys is not None:
        config.cluster_keys.secure_connector(socket, endpoint)
    socket.connect(endpoint)


class EngineLink:
    """A DEALER whose identity is a `LinkName`, connected to the engine core's ROUTER.

    One frame a message. The core sends to the link for `stage`; another thread has a link for
    another use, and answers come to who asked.
    """

    def __init__(
        self, context: ZMQContext, config: ExecutionConfig, stage: int, use: str = "stage"
    ) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, bytes(LinkName(use, stage, config.restarts)))
        _connect(self._socket, config, config.worker_endpoint)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToWorker)

    def send(self, message: FromWorker) -> None:
        self._socket.send(self._encoder.encode(message))

    def receive(self) -> ToWorker:
        """Wait for the core's next message. Raises msgspec.ValidationError for anything else."""
        return self._decoder.decode(self._socket.recv())


class StepInbox:
    """Hands out steps in submit order, and the mask of a step by its number.

    A mask comes after its step, but perhaps behind later ones, which wait here meanwhile: no more
    than may be in flight.
    """

    def __init__(self, engine: EngineLink) -> None:
        self._engine = engine
        self._steps: deque[StepInput] = deque()
        self._masks: dict[int, StepMask] = {}

    def next_step(self) -> StepInput:
        """Wait for the next step. Raises TypeError for a message that is neither a step nor a
        mask."""
        while not self._steps:
            self._receive()
        return self._steps.popleft()

    def take_mask(self, step: int) -> StepMask:
        while step not in self._masks:
            self._receive()
        return self._masks.pop(step)

    def _receive(self) -> None:
        match message := self._engine.receive():
            case DecodeStep() | EncodeStep():
                self._steps.append(message)
            case StepMask(step=step):
                self._masks[step] = message
            case _:
                raise TypeError(f"expected a step, not {type(message).__name__}")


class TokenSender:
    """Returns sampled tokens from a pipeline's last stage to the slots of the first, over ZMQ.

    For stages that share no memory: on CPUs, on several hosts, or where NCCL connects the GPUs.
    Used by the thread that sends results: tokens are sent once they are on the host. The first
    stage knows from the steps' messages whose they are.
    """

    def __init__(self, context: ZMQContext, config: ExecutionConfig) -> None:
        self._socket = context.socket(zmq.PUSH)
        _connect(self._socket, config, config.token_endpoint)
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, output: StepOutput) -> None:
        assert isinstance(output, GenerateOutput), "only generators have a token return"
        if output.tokens:
            self._socket.send(self._encoder.encode(SampledTokens(output.step, output.tokens)))


class TokenReceiver:
    """The first stage's end of `TokenSender`'s link. Steps arrive in submit order."""

    def __init__(
        self,
        context: ZMQContext,
        config: ExecutionConfig,
        store: Callable[[IntArray, IntArray], None],
    ) -> None:
        """`store` gets slots and their newest tokens, int32[S] each."""
        self._socket = context.socket(zmq.PULL)
        if config.cluster_keys is not None:
            self._admission = config.cluster_keys.admission(context)
            config.cluster_keys.secure_listener(self._socket, config.token_endpoint)
            Refusals(config.token_endpoint).watch(self._socket)
        self._socket.bind(config.token_endpoint)
        self._decoder = msgspec.msgpack.Decoder(SampledTokens)
        self._store = store
        self._arrived = -1
        self._sampled: deque[tuple[int, IntArray]] = deque()

    def prepare(self, message: DecodeStep) -> None:
        """Before a step: store the tokens that have arrived, and wait until those of the step
        `message.after` have."""
        while self._arrived < message.after or self._socket.poll(0):
            sampled = self._decoder.decode(self._socket.recv())
            self._arrived = sampled.step
            step, slots = self._sampled.popleft()
            assert step == sampled.step, "tokens come in the order of the steps"
            self._store(slots, np.frombuffer(bytearray(sampled.tokens), np.int32))
        samples = np.frombuffer(message.sample, np.bool_)
        if samples.any():
            self._sampled.append((message.step, np.frombuffer(message.slots, np.int32)[samples]))
