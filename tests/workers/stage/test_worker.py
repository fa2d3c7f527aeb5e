"""The life of a worker, up to its ways to end."""

import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
import zmq

from tests.patience import PATIENCE
from tests.workers.checkpoints import save_llama, share_of, with_execution, worker_config
from tests.workers.stages import NUM_BLOCKS, Stages
from tests.workers.step_maker import StepMaker
from tests.workers.worker_group import WorkerGroup
from workers.contract.config import WorkerConfig
from workers.contract.messages import (
    AllocateKV,
    FromWorker,
    ToWorker,
    WorkerConnected,
    WorkerFailed,
    WorkerLoaded,
)
from workers.links.engine_link import StepInbox
from workers.stage.worker import run_worker


def test_workers_serve_and_beat_until_their_parent_is_gone(tmp_path: Path) -> None:
    model = save_llama(tmp_path)
    maker = StepMaker(4, NUM_BLOCKS)
    row = maker.admit([5, 6, 7, 8, 9])
    steps = [maker.step([(row, 5)]), maker.step([(row, 1)], after=0)]
    stages = Stages(tmp_path)
    expected = [stages.run(step).tokens for step in steps]
    with WorkerGroup(worker_config(tmp_path), 2, spared=(1,)) as group:
        loaded = group.get_ready(NUM_BLOCKS)
        assert sum(own.weight_bytes for own in loaded) == sum(
            weight.nbytes for weight in model.parameters()
        )
        wait_for_beats(group, -1)
        first, second = group.processes
        first.send_signal(signal.SIGINT)  # Ctrl-C is the supervisor's to interpret
        for step in steps:
            group.submit(step)
        outputs = [group.output() for _ in steps]
        assert [getattr(output, "tokens", None) for output in outputs] == expected
        wait_for_beats(group, steps[-1].step)
        assert first.stdin is not None
        first.stdin.close()
        second.terminate()
        assert first.wait(timeout=PATIENCE) == 1
        assert second.wait(timeout=PATIENCE) == -signal.SIGTERM
        for stage in (0, 1):
            (line,) = group.log(stage)
            assert "workers.stage.worker" in group.file(stage, "imports").read_text().split()
            assert re.search(
                r"ready after \d+\.\d s: imports and links \d+\.\d, .*, warm-up ", line
            )


def wait_for_beats(group: WorkerGroup, last_finished_step: int) -> None:
    """Wait until both stages say that they have finished this step."""
    newest: dict[int, int] = {}
    while newest != dict.fromkeys((0, 1), last_finished_step):
        beat = group.beat()
        newest[beat.stage] = beat.last_finished_step


def test_a_missing_weight_file_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    save_llama(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with WorkerGroup(worker_config(tmp_path), 1) as group:
        group.hand_out_shares()
        failure = group.failure()
        assert "safetensors" in failure.message
        assert str(tmp_path) in failure.message
        assert group.processes[0].wait(timeout=PATIENCE) == 1
        (line,) = group.log(0)
        time, logged = line.split(" ", 1)
        assert re.fullmatch(r"\d\d:\d\d:\d\d", time)
        assert logged == f"ERROR   worker 0 of tiny: {failure.message}"


def test_a_message_out_of_turn_is_an_error_by_name(llama: Path) -> None:
    failure = failure_of(worker_config(llama), {WorkerConnected: AllocateKV(3)})
    assert failure == WorkerFailed(0, "TypeError: expected Share, not AllocateKV")
    engine: Any = SimpleNamespace(receive=lambda: AllocateKV(3))
    with pytest.raises(TypeError, match="expected a step, not AllocateKV"):
        StepInbox(engine).next_step()


def test_what_cannot_start_says_why(llama: Path) -> None:
    config = worker_config(llama)
    model = msgspec.structs.replace(config.execution.model, architecture="Mamba")
    failure = failure_of(with_execution(config, model=model))
    assert failure.stage == 0
    assert re.match("architecture 'Mamba' is not supported", failure.message)
    assert "\n" not in failure.message


def test_running_out_of_memory_names_the_setting_as_the_server_does(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("workers.stage.worker._runner", run_out)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 30, 8 << 30))
    names = {"kv_cache_memory": "--kv-cache-memory"}
    failure = failure_of(with_execution(worker_config(llama), setting_names=names))
    assert "1.0 of 8.0 GiB are free; lower --kv-cache-memory" in failure.message


def failure_of(
    config: WorkerConfig, answers: dict[type[FromWorker], ToWorker] | None = None
) -> WorkerFailed:
    """The last message of a worker in this process that fails during its start."""
    usual = {WorkerConnected: share_of(config), WorkerLoaded: AllocateKV(NUM_BLOCKS)}
    answers = usual | (answers or {})
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.ROUTER) as router, ThreadPoolExecutor(1) as thread:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        own = with_execution(config, worker_endpoint=f"tcp://127.0.0.1:{port}")
        workers_context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        ending = thread.submit(run_worker, own, workers_context, time.monotonic(), lambda: None)
        message = None
        while not isinstance(message, WorkerFailed):
            assert router.poll(10_000), message
            identity, frame = router.recv_multipart()
            assert identity in (b"stage-0-0", b"failure-0-0")
            message = msgspec.msgpack.decode(frame, type=FromWorker)
            if (answer := answers.get(type(message))) is not None:
                router.send_multipart([identity, msgspec.msgpack.encode(answer)])
        error = ending.result()
        workers_context.destroy(0)
        assert error.__traceback__ is not None
    return message
