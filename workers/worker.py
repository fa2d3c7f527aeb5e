"""The life of one stage: load, allocate, connect, warm up, then run step after step."""

import logging
import os
import time

import msgspec
import numpy as np
import torch
import zmq

from workers.attention.registry import AttentionBackendError, select_backend
from workers.checkpoint import CheckpointError
from workers.config import WorkerConfig
from workers.engine_link import EngineLink
from workers.kv_cache import kv_block_bytes
from workers.loader import TORCH_DTYPES, LoadedModel, load_model
from workers.messages import (
    AllocateKV,
    SampledTokens,
    StepInput,
    StepOutput,
    WorkerFailed,
    WorkerLoaded,
    WorkerReady,
)
from workers.model_config import ModelConfigError
from workers.model_input import ModelInput
from workers.models.partition import stage_layers
from workers.models.registry import UnknownArchitectureError
from workers.pipeline import Neighbours, PipelineError, connect
from workers.runner import ModelRunner, attention_needs
from workers.token_return import TokenReceiver, TokenSender
from workers.transfer import on_device
from workers.warm_up import warm_up

_EXPLAINED = (
    AttentionBackendError,
    CheckpointError,
    ModelConfigError,
    PipelineError,
    UnknownArchitectureError,
)
"""Errors whose own message is fit for a person."""

LINGER_MS = 1000
"""How long a failed worker tries to tell its engine core."""

_logger = logging.getLogger(__name__)


def run_worker(config: WorkerConfig) -> None:
    """Serve steps until the process is killed. Returns only after a failure, which by then is
    logged and reported to the engine core."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    engine = EngineLink(context, config.endpoint, config.stage)
    try:
        with torch.inference_mode():
            _serve(config, context, engine)
    except Exception as error:
        engine.send(WorkerFailed(config.stage, _explain(error)))
        context.destroy(LINGER_MS)


class Stage:
    """A stage that is ready: takes steps from the engine core in order and runs its share."""

    def __init__(
        self,
        config: WorkerConfig,
        context: zmq.Context[zmq.Socket[bytes]],
        runner: ModelRunner,
        neighbours: Neighbours,
    ) -> None:
        self._device = torch.device(config.device)
        self._runner = runner
        self._neighbours = neighbours
        returns = config.head == "generate" and config.num_stages > 1
        endpoint = config.token_endpoint
        self._arriving = (
            TokenReceiver(context, endpoint) if returns and neighbours.previous is None else None
        )
        self._returning = (
            TokenSender(context, endpoint) if returns and neighbours.next is None else None
        )

    def run(self, message: StepInput) -> StepOutput | None:
        """Run one step; the last stage returns what there is to report."""
        if self._arriving is not None:
            self._take_tokens(self._arriving, message.after)
        started = time.perf_counter()
        batch = self._runner.prepare(message)
        waiting = time.perf_counter()
        hidden = self._receive(batch)
        waited = time.perf_counter() - waiting
        hidden = self._runner.forward(batch, hidden)
        if self._neighbours.next is not None:
            self._neighbours.next.send(hidden)
            return None
        output = self._runner.report(batch, hidden)
        if self._returning is not None and batch.sampling is not None:
            slots = batch.sampling.slots.tobytes()
            self._returning.send(SampledTokens(message.step, slots, output.tokens))
        busy = time.perf_counter() - started - waited
        return msgspec.structs.replace(output, busy_us=round(busy * 1e6))

    def _take_tokens(self, receiver: TokenReceiver, after: int) -> None:
        for sampled in receiver.take(after):
            slots = np.frombuffer(bytearray(sampled.slots), np.int32)
            tokens = np.frombuffer(bytearray(sampled.tokens), np.int32)
            self._runner.slots.store_last_tokens(slots, on_device(tokens, self._device))

    def _receive(self, batch: ModelInput) -> torch.Tensor | None:
        previous = self._neighbours.previous
        return None if previous is None else previous.receive(len(batch.tensors.positions))


def _serve(
    config: WorkerConfig, context: zmq.Context[zmq.Socket[bytes]], engine: EngineLink
) -> None:
    loaded = load_model(config)
    backend = select_backend(config.attention_backend, attention_needs(config))
    engine.send(_announcement(config, loaded))
    allocation = engine.receive()
    if not isinstance(allocation, AllocateKV):
        raise TypeError(f"expected AllocateKV, not {type(allocation).__name__}")
    runner = ModelRunner(config, loaded.model, backend, allocation.num_blocks)
    stage = Stage(config, context, runner, connect(config, _end_process))
    warm_up(runner, config)
    engine.send(WorkerReady(config.stage))
    while True:
        message = engine.receive()
        if not isinstance(message, StepInput):
            raise TypeError(f"expected a step, not {type(message).__name__}")
        output = stage.run(message)
        if output is not None:
            engine.send(output)


def _announcement(config: WorkerConfig, loaded: LoadedModel) -> WorkerLoaded:
    paged = config.head == "generate"
    layers = stage_layers(config.model.num_layers, config.stage, config.num_stages)
    dtype = TORCH_DTYPES[config.dtype]
    block = kv_block_bytes(config.model, len(layers), config.block_size, dtype)
    return WorkerLoaded(
        stage=config.stage,
        weight_bytes=loaded.weight_bytes,
        seconds=loaded.seconds,
        kv_block_bytes=block if paged else 0,
        kv_budget_bytes=config.kv_cache_bytes if paged else 0,
    )


def _explain(error: Exception) -> str:
    """Log a failure, and put it in one line."""
    line = " ".join(str(error).split())
    message = line if isinstance(error, _EXPLAINED) else f"{type(error).__name__}: {line}"
    _logger.debug("traceback of the failure", exc_info=error)
    _logger.error("%s", message)
    return message


def _end_process(error: PipelineError) -> None:
    """A failure outside the main thread, which may itself be waiting for something that will now
    never come."""
    _explain(error)
    os._exit(1)
