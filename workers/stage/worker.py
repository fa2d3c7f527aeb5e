"""The life of one stage: load, allocate, connect, warm up, then run step after step."""

import logging
import os
import time

import numpy as np
import torch
import zmq

from workers.attention.backend_selection import AttentionBackendError, select_backend
from workers.attention.base import AttentionBackend
from workers.attention.kv_cache import kv_block_bytes
from workers.contract.config import WorkerConfig
from workers.contract.messages import (
    AllocateKV,
    SampledTokens,
    StepInput,
    StepMask,
    WorkerFailed,
    WorkerLoaded,
    WorkerReady,
)
from workers.contract.model_config import ModelConfigError
from workers.device.transfer import on_device, to_device
from workers.links.activations import Neighbours, PipelineError, connect
from workers.links.engine_link import EngineLink
from workers.links.token_return import TokenReceiver, TokenSender
from workers.models.partition import stage_layers
from workers.models.registry import UnknownArchitectureError
from workers.sampling.adjustments import TokenMask
from workers.stage.heartbeat import beating
from workers.stage.memory import (
    DeviceMemoryError,
    blocks_of_largest_step,
    explained,
    measured_kv_budget,
    release_cached,
)
from workers.stage.model_input import ModelInput
from workers.stage.model_runner import ModelRunner, attention_needs
from workers.stage.result_reports import ImmediateReports, QueuedReports, Reports
from workers.stage.warm_up import warm_up
from workers.weights.checkpoint import CheckpointError
from workers.weights.loader import TORCH_DTYPES, LoadedModel, load_model

_EXPLAINED = (
    AttentionBackendError,
    CheckpointError,
    DeviceMemoryError,
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
        engine: EngineLink,
        runner: ModelRunner,
        neighbours: Neighbours,
    ) -> None:
        self.finished = -1
        self._device = torch.device(config.device)
        self._engine = engine
        self._runner = runner
        self._neighbours = neighbours
        self._reports = _reports(config, context, engine)
        returns = config.task == "generate" and config.num_stages > 1
        endpoint = config.token_endpoint
        self._arriving = (
            TokenReceiver(context, endpoint) if returns and neighbours.previous is None else None
        )
        self._returning = (
            TokenSender(context, endpoint) if returns and neighbours.next is None else None
        )

    def run(self, message: StepInput) -> None:
        """Run one step, or queue it on the device; the last stage has it reported."""
        self._run(message)
        self.finished = message.step

    def _run(self, message: StepInput) -> None:
        if self._arriving is not None:
            self._take_tokens(self._arriving, message.after)
        batch = self._runner.prepare(message)
        self._reports.begin()
        waiting = time.perf_counter()
        hidden = self._receive(batch)
        waited = time.perf_counter() - waiting
        hidden = self._runner.forward(batch, hidden)
        if self._neighbours.next is not None:
            self._neighbours.next.send(hidden)
            return
        result = self._runner.report(batch, hidden, self._receive_mask(message))
        output = self._reports.end(message.step, result, waited)
        sampling = batch.wanted.sampling
        if self._returning is not None and sampling is not None:
            assert output is not None, "a pipeline's results are there at once"
            slots = sampling.slots.tobytes()
            self._returning.send(SampledTokens(message.step, slots, output.tokens))

    def _take_tokens(self, receiver: TokenReceiver, after: int) -> None:
        for sampled in receiver.receive(after):
            slots = np.frombuffer(bytearray(sampled.slots), np.int32)
            tokens = np.frombuffer(bytearray(sampled.tokens), np.int32)
            self._runner.slots.store_last_tokens(*to_device([slots, tokens], self._device))

    def _receive(self, batch: ModelInput) -> torch.Tensor | None:
        previous = self._neighbours.previous
        return None if previous is None else previous.receive(len(batch.tensors.positions))

    def _receive_mask(self, message: StepInput) -> TokenMask | None:
        """What the grammars of the step's masked rows allow, computed while the layers run."""
        if not message.masked:
            return None
        mask = self._engine.receive()
        if not isinstance(mask, StepMask) or mask.step != message.step:
            raise TypeError(f"expected the mask of step {message.step}, not {mask!r}")
        rows = np.flatnonzero(np.frombuffer(message.masked, np.uint8)).astype(np.int32)
        words = np.frombuffer(bytearray(mask.bits), np.int32).reshape(len(rows), -1)
        return TokenMask(rows, on_device(words, self._device))


def _serve(
    config: WorkerConfig, context: zmq.Context[zmq.Socket[bytes]], engine: EngineLink
) -> None:
    # Whatever the environment says: float32 is float32, not TF32.
    torch.set_float32_matmul_precision("highest")
    with explained("loading the weights", "use more --pipeline-stages, or a model that is smaller"):
        loaded = load_model(config)
    backend = select_backend(config.attention_backend, attention_needs(config))
    engine.send(_announcement(config, loaded, _kv_budget(config, loaded, backend)))
    allocation = engine.receive()
    if not isinstance(allocation, AllocateKV):
        raise TypeError(f"expected AllocateKV, not {type(allocation).__name__}")
    needed = allocation.num_blocks * _block_bytes(config)
    remedy = "lower --kv-cache-memory (or --memory-share)"
    with explained("allocating the KV cache", remedy, needed):
        runner = ModelRunner(config, loaded.model, backend, allocation.num_blocks)
    stage = Stage(config, context, engine, runner, connect(config, _end_process))
    with explained("warming up", remedy):
        warm_up(runner, config)
    engine.send(WorkerReady(config.stage))
    beats = EngineLink(context, config.endpoint, config.stage, "beats")
    with beating(beats, config.stage, lambda: stage.finished):
        while True:
            message = engine.receive()
            if not isinstance(message, StepInput):
                raise TypeError(f"expected a step, not {type(message).__name__}")
            stage.run(message)


def _reports(
    config: WorkerConfig, context: zmq.Context[zmq.Socket[bytes]], engine: EngineLink
) -> Reports:
    if config.device == "cpu":
        return ImmediateReports(engine)
    own = EngineLink(context, config.endpoint, config.stage, "reports")
    return QueuedReports(own, _end_process)


def _kv_budget(config: WorkerConfig, loaded: LoadedModel, backend: AttentionBackend) -> int:
    """Bytes for the KV cache: what was asked for, or what the device has left."""
    if config.task != "generate" or not config.memory_share_bytes:
        return config.kv_cache_bytes
    runner = ModelRunner(config, loaded.model, backend, blocks_of_largest_step(config))
    budget = measured_kv_budget(config, runner)
    del runner
    release_cached()
    return budget


def _announcement(config: WorkerConfig, loaded: LoadedModel, kv_budget: int) -> WorkerLoaded:
    paged = config.task == "generate"
    return WorkerLoaded(
        stage=config.stage,
        weight_bytes=loaded.weight_bytes,
        seconds=loaded.seconds,
        kv_block_bytes=_block_bytes(config) if paged else 0,
        kv_budget_bytes=kv_budget if paged else 0,
    )


def _block_bytes(config: WorkerConfig) -> int:
    layers = stage_layers(config.model.num_layers, config.stage, config.num_stages)
    return kv_block_bytes(config.model, len(layers), config.block_size, TORCH_DTYPES[config.dtype])


def _explain(error: Exception) -> str:
    """Log a failure, and put it in one line."""
    line = " ".join(str(error).split())
    message = line if isinstance(error, _EXPLAINED) else f"{type(error).__name__}: {line}"
    _logger.debug("traceback of the failure", exc_info=error)
    _logger.error("%s", message)
    return message


def _end_process(error: Exception) -> None:
    """A failure outside the main thread, which may itself be waiting for something that will now
    never come."""
    _explain(error)
    os._exit(1)
