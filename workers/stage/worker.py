"""The life of a worker: connect, load a share of the layers, allocate, warm up, run steps."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar

import torch
import zmq

from workers.attention.backend_selection import AttentionBackendError, select_backends
from workers.attention.base import AttentionBackend
from workers.contract.config import ExecutionConfig, WorkerConfig
from workers.contract.messages import (
    AllocateKV,
    WorkerBeat,
    WorkerConnected,
    WorkerFailed,
    WorkerLoaded,
    WorkerReady,
)
from workers.contract.model_config import ModelConfigError
from workers.contract.process import BEAT_SECONDS, end_with_threads
from workers.contract.share import Share, StageCosts
from workers.device.heap import HeapTrimmer
from workers.layers.layer import Placement
from workers.links.engine_link import EngineLink, StepInbox, TokenReceiver, TokenSender, ZMQContext
from workers.links.transport import Links, PipelineError, connect
from workers.stage.memory import DeviceMemoryError, explained, release_cached
from workers.stage.model_runner import EncodeRunner, attention_needs
from workers.stage.stage import QueuedSender, ResultSender, Stage
from workers.weights.held import ask_for_weights
from workers.weights.loader import LoadedModel, load_model

if TYPE_CHECKING:
    from workers.stage.decode_runner import DecodeRunner


_EXPLAINED = (
    AttentionBackendError,
    DeviceMemoryError,
    ModelConfigError,
    PipelineError,
)
"""Errors whose message needs no exception type in front."""

LINGER_MS = 1000
"""Milliseconds in which a failed worker tries to send the failure to its engine core."""

_logger = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT", Share, AllocateKV)


def run_worker(
    config: WorkerConfig, context: ZMQContext, begun: float, on_ready: Callable[[], object]
) -> Exception:
    """Serve steps until the process is killed. Returns only after a failure, which is then logged
    and sent to the engine core. The process has `begun` at that time of the monotonic clock.

    The failure's traceback keeps alive what the stage had on its device. The process is to exit
    while it is held: freeing may wait for a device that waits for a lost neighbour.
    """
    send_last_words = partial(_send_last_words, config.execution, config.stage)
    # The main thread may be waiting for a message that will never come then.
    end_with_threads(lambda _, error: send_last_words(error))
    engine = EngineLink(context, config.execution, config.stage)
    try:
        with torch.inference_mode():
            _serve(config, context, engine, Phases(begun), on_ready)
    except Exception as error:
        send_last_words(error)
        return error


def _send_last_words(execution: ExecutionConfig, stage: int, error: BaseException) -> None:
    """Log a failure and tell the engine core, over a socket that no other thread uses."""
    line = " ".join(str(error).split())
    message = line if isinstance(error, _EXPLAINED) else f"{type(error).__name__}: {line}"
    _logger.debug("traceback of the failure", exc_info=error)
    _logger.error("%s", message)
    context: ZMQContext = zmq.Context()
    link = EngineLink(context, execution, stage, "failure")
    link.send(WorkerFailed(stage, message, isinstance(error, PipelineError)))
    context.destroy(LINGER_MS)


class Phases:
    """The seconds of each phase of a start."""

    def __init__(self, begun: float) -> None:
        self._begun = self._last = begun
        self._ended: list[str] = []

    def end(self, name: str) -> None:
        """Count all since the phase before to this one."""
        before, self._last = self._last, time.monotonic()
        self._ended.append(f"{name} {self._last - before:.1f}")

    def log(self) -> None:
        _logger.info("ready after %.1f s: %s", self._last - self._begun, ", ".join(self._ended))


def _serve(
    config: WorkerConfig,
    context: ZMQContext,
    engine: EngineLink,
    phases: Phases,
    on_ready: Callable[[], object],
) -> NoReturn:
    # float32 means float32, not TF32, whatever the environment sets.
    torch.set_float32_matmul_precision("highest")
    execution = config.execution
    if execution.device_type == "cuda":
        torch.cuda.set_device(config.local_device)
    # From now on the core knows whose connection it is: a stage that goes takes others with it.
    engine.send(WorkerBeat(config.stage, -1))
    remedy = f"lower {execution.setting('max_step_tokens')}"
    with explained("allocating what stages share", remedy):
        links = connect(config, context)
    phases.end("imports and links")
    choices = Placement.of(config).choices
    backends = select_backends(execution.attention_backend, attention_needs(execution), choices)
    phases.end("attention backend")
    engine.send(WorkerConnected(config.stage, _costs(config, backends)))
    share = _answer(engine, Share)
    phases.end("costs of layers")
    loaded = _loaded(config, share, context, phases)
    announcement = _announcement(config, loaded, backends, links)
    engine.send(announcement)
    num_blocks = _answer(engine, AllocateKV).num_blocks
    setting = execution.setting
    if execution.model.has_kv_cache:
        remedy = f"lower {setting('kv_cache_memory')} (or {setting('memory_share')})"
    with explained("allocating the KV cache", remedy, num_blocks * announcement.kv_block_bytes):
        runner = _runner(config, loaded, backends, num_blocks, links)
    phases.end("KV cache")
    with explained("warming up", remedy):
        runner.warm_up()
    phases.end("warm-up")
    inbox = StepInbox(engine)
    stage = _stage(runner, links, engine, inbox, context)
    phases.log()
    on_ready()
    engine.send(WorkerReady(config.stage))
    _start_heartbeat(config, context, stage)
    _run_steps(stage, inbox, HeapTrimmer() if execution.device_type == "cpu" else None)


def _run_steps(stage: Stage, inbox: StepInbox, trimmer: HeapTrimmer | None) -> NoReturn:
    while True:
        stage.run(inbox.next_step())
        if trimmer is not None:
            trimmer.after_step()


def _loaded(config: WorkerConfig, share: Share, context: ZMQContext, phases: Phases) -> LoadedModel:
    with explained("loading the weights", "use a smaller model"):
        keeps = config.execution.keeps_weights
        held = ask_for_weights(config, share, context) if keeps else None
        loaded = load_model(config, share, held)
    phases.end("weights" if held is None or held.seconds else "weights mapped")
    return loaded


def _answer(engine: EngineLink, kind: type[AnswerT]) -> AnswerT:
    message = engine.receive()
    if not isinstance(message, kind):
        raise TypeError(f"expected {kind.__name__}, not {type(message).__name__}")
    return message


def _costs(config: WorkerConfig, backends: Sequence[AttentionBackend]) -> StageCosts | None:
    if config.execution.num_stages == 1 or config.execution.stage_layers:
        return None
    from workers.stage.stage_costs import measured_costs  # noqa: PLC0415

    with explained("timing one layer", "use a smaller model"):
        costs = measured_costs(config, backends)
    if costs is not None:
        release_cached()
    return costs


# Sampling, CUDA graphs and the decoder's runner are imported for decoders alone, so that an
# encoder starts faster.


def _runner(
    config: WorkerConfig,
    loaded: LoadedModel,
    backends: Sequence[AttentionBackend],
    num_blocks: int,
    links: Links,
) -> "DecodeRunner | EncodeRunner":
    if config.execution.model.has_kv_cache:
        from workers.stage.decode_runner import DecodeRunner  # noqa: PLC0415

        last_tokens = links.tokens.last_tokens if links.tokens is not None else None
        return DecodeRunner(config, loaded, backends, num_blocks, last_tokens)
    return EncodeRunner(config, loaded, backends)


def _stage(
    runner: "DecodeRunner | EncodeRunner",
    links: Links,
    engine: EngineLink,
    inbox: StepInbox,
    context: ZMQContext,
) -> Stage:
    config, sender, receiver = runner.config, None, None
    if config.num_stages > 1 and config.task == "generate" and links.tokens is None:
        if runner.last:
            sender = TokenSender(context, config)
        elif runner.first and not isinstance(runner, EncodeRunner):
            store = runner.slots.store_sampled
            receiver = TokenReceiver(context, config, store)
    if config.device_type == "cpu":
        results = ResultSender(engine, runner.stage, sender)
    else:
        own = EngineLink(context, config, runner.stage, "results")
        results = QueuedSender(own, runner.stage, sender)
    return Stage(runner, links, results, inbox, receiver)


def _announcement(
    config: WorkerConfig, loaded: LoadedModel, backends: Sequence[AttentionBackend], links: Links
) -> WorkerLoaded:
    """The stage's weights, and its bytes for a KV cache: as configured, or the rest of the device's
    share."""
    execution, budget = config.execution, 0
    if execution.model.has_kv_cache:
        budget = execution.kv_cache_bytes
        if config.memory_share:
            from workers.stage.kv_budget import measured_kv_budget  # noqa: PLC0415

            budget = measured_kv_budget(config, loaded, backends, links.ring_bytes)
            release_cached()
    return WorkerLoaded(
        stage=config.stage,
        weight_bytes=loaded.weight_bytes,
        seconds=loaded.seconds,
        kv_block_bytes=execution.kv_block_bytes(loaded.model.share.layers),
        kv_budget_bytes=budget,
    )


def _start_heartbeat(config: WorkerConfig, context: ZMQContext, stage: Stage) -> None:
    """Send heartbeats to the engine core (`engine_core/executor/stage_link.py`) until the process
    ends. That is in a thread, over a link of its own: how long a step may take is the engine core's
    to judge."""
    number = config.stage
    engine = EngineLink(context, config.execution, number, "beats")

    def beat() -> NoReturn:
        while True:
            time.sleep(BEAT_SECONDS)
            engine.send(WorkerBeat(number, stage.last_finished_step))

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()
