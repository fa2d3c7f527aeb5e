"""Which processes a daemon has, and what they are given."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine_core.config import EngineConfig
from server.daemon.parts import Part, Role, RunningPart, daemon_parts
from server.settings.settings import ServerConfig
from tests.server.checkpoint_folders import BERT, LLAMA, write_checkpoint
from tests.server.daemon.fake_daemon import FakeDaemon
from tests.server.support import api_keys, set_up
from workers.contract.config import WorkerConfig

FD = 99


def write_config(folder: Path, api_workers: int = 1, **options: Any) -> ServerConfig:
    own = {"pipeline_stages": 2, "threads": 3} | options
    models = tuple(
        set_up(write_checkpoint(folder / name, config), name, **own)
        for name, config in {"generator": LLAMA, "embedder": BERT}.items()
    )
    return ServerConfig(api_workers=api_workers, api_keys=api_keys("secret"), models=models)


def environments(folder: Path, *roles: Role) -> list[dict[str, str]]:
    """Those of the processes of these roles."""
    parts = daemon_parts(write_config(folder), FD, folder)
    return [part.environment for part in parts if part.role in roles]


def test_one_engine_a_model_one_worker_a_stage(tmp_path: Path) -> None:
    parts = daemon_parts(write_config(tmp_path, api_workers=2), FD, tmp_path)
    model = ("engine of {}", "worker 0 of {}", "worker 1 of {}")
    assert [part.title for part in parts] == [
        *[title.format(name) for name in ("generator", "embedder") for title in model],
        *("api process 0", "api process 1"),
    ]
    modules = ["engine_core", "workers", "workers"] * 2 + ["server.daemon.api_process"] * 2
    commands = [part.command[:4] for part in parts]
    assert commands == [[sys.executable, "-P", "-m", module] for module in modules]
    assert [part.inherited_fd for part in parts] == [None] * 6 + [FD] * 2
    assert [api.command[-1] for api in parts[-2:]] == ["0", "1"]
    files = [file for api in parts[-2:] for file in read(api, ServerConfig).count_files]
    assert files == [str(tmp_path / f"api-{number}.counts") for number in (0, 1)] * 2


def test_copies_of_an_engine_have_names_groups_and_files_of_their_own(tmp_path: Path) -> None:
    model = set_up(
        write_checkpoint(tmp_path / "generator", LLAMA),
        "m",
        pipeline_stages=2,
        data_parallel_size=2,
    )
    *parts, _ = daemon_parts(ServerConfig(models=(model,)), FD, tmp_path)
    titles = ("engine of copy {} of m", "worker 0 of copy {} of m", "worker 1 of copy {} of m")
    assert [part.title for part in parts] == [each.format(n) for n in (0, 1) for each in titles]
    assert [part.group for part in parts] == ["copy 0 of m"] * 3 + ["copy 1 of m"] * 3
    files = [Path(part.command[4]).name for part in parts]
    assert [file.partition(".")[0] for file in files] == ["0"] * 3 + ["0-1"] * 3
    assert [read(part, EngineConfig) for part in parts[::3]] == list(model.engines)
    workers = [read(part, WorkerConfig) for part in (*parts[1:3], *parts[4:])]
    assert [each.execution for each in workers[::2]] == [each.execution for each in model.engines]
    assert [each.stage for each in workers] == [0, 1, 0, 1]


def test_each_reads_its_own_configuration(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    parts = daemon_parts(config, FD, tmp_path)
    engine, first, second, *_, api = parts
    assert read(engine, EngineConfig) == config.models[0].engine
    workers = [read(worker, WorkerConfig) for worker in (first, second)]
    assert [worker.stage for worker in workers] == [0, 1]
    assert all(worker.execution == config.models[0].execution for worker in workers)
    assert read(api, ServerConfig) == msgspec.structs.replace(
        config,
        process_file=str(tmp_path / "processes.json"),
        batch_file=str(tmp_path / "batches.state"),
        count_files=(str(tmp_path / "api-0.counts"),),
    )
    assert api.command[5:] == [str(FD), "0"]
    # They hold the digests of API keys: they are for this user only.
    assert {Path(part.command[4]).stat().st_mode & 0o777 for part in parts} == {0o600}


def test_workers_make_no_multicast_objects_whatever_the_daemon_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One can put all GPUs of a host out of service for a day."""
    monkeypatch.setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "0")
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "2")
    workers = environments(tmp_path, "worker")
    assert len(workers) == 4
    assert {worker["TORCH_SYMM_MEM_DISABLE_MULTICAST"] for worker in workers} == {"1"}
    assert {worker["NCCL_NVLS_ENABLE"] for worker in workers} == {"0"}


def test_workers_have_threads_and_make_their_own_sockets_in_the_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    engine, *workers = environments(tmp_path, "engine", "worker")[:3]
    assert (engine["TMPDIR"], engine["OMP_NUM_THREADS"]) == ("/elsewhere", "1")
    for worker in workers:
        assert (worker["TMPDIR"], worker["OMP_NUM_THREADS"]) == (str(tmp_path), "3")
        assert worker["GLOO_SOCKET_IFNAME"] == "lo"


@pytest.mark.parametrize(
    ("device", "inherited", "visible"),
    [
        ("cuda", "", "0,1"),
        ("cuda:1", "", "1,2"),
        ("cuda:1", "5, GPU-8932f937-d72c,7", "GPU-8932f937-d72c,7"),
        ("cpu", "", ""),
        ("cpu", "0,1", ""),
    ],
)
def test_a_worker_sees_the_gpus_of_its_engine_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, inherited: str, visible: str
) -> None:
    for module in ("devices", "model_setup"):
        monkeypatch.setattr(f"server.models.{module}.cuda_memory", lambda: (80 << 30,) * 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if inherited:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", inherited)
    config = write_config(tmp_path, device=device, load_format="dummy")
    workers = [part for part in daemon_parts(config, FD, tmp_path) if part.role == "worker"]
    assert [worker.environment["CUDA_VISIBLE_DEVICES"] for worker in workers] == [visible] * 4
    kind = device.partition(":")[0]
    bounded = ["ONEDNN_PRIMITIVE_CACHE_CAPACITY" in worker.environment for worker in workers]
    assert bounded == [kind == "cpu"] * 4
    assert [read(worker, WorkerConfig).execution.device_type for worker in workers] == [kind] * 4


def test_each_stage_on_a_gpu_that_may_be_started_again_has_a_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("devices", "model_setup"):
        monkeypatch.setattr(f"server.models.{module}.cuda_memory", lambda: (80 << 30,) * 2)
    own: dict[str, Any] = {"device": "cuda", "load_format": "dummy", "max_restarts": 3}
    engine, *parts = daemon_parts(write_config(tmp_path, **own), FD, tmp_path)[:5]
    assert engine.role == "engine"
    names = [(part.command[3], part.title, part.number) for part in parts]
    assert names == [
        (module, f"{role} {stage} of generator", stage)
        for stage in range(2)
        for role, module in (("holder", "workers.weights.holder"), ("worker", "workers"))
    ]
    holder, worker = parts[:2]
    assert read(holder, WorkerConfig) == read(worker, WorkerConfig)
    # Of memory in segments that grow, torch hands out descriptors.
    assert holder.environment["PYTORCH_ALLOC_CONF"] == "expandable_segments:False"
    assert holder.environment["CUDA_VISIBLE_DEVICES"] == worker.environment["CUDA_VISIBLE_DEVICES"]


def read(part: Part, kind: Any) -> Any:
    return msgspec.json.decode(Path(part.command[4]).read_bytes(), type=kind)


@pytest.fixture
def daemon(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> FakeDaemon:
    """Its batches never send a heartbeat."""
    daemon = FakeDaemon(tmp_path, caplog)
    daemon.add("worker", "worker")
    daemon.add("batches", "batch")
    return daemon


async def two_starts(daemon: FakeDaemon, when_ready: Callable[[], None], **times: Any) -> list:
    """The processes of both by name: the second one ends the daemon."""
    starts: list[dict[str, int]] = []

    def on_started(processes: Sequence[RunningPart]) -> None:
        starts.append({process.part.title: process.pid for process in processes})
        if len(starts) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    assert await daemon.run(when_ready, on_started=on_started, **times) == 0
    return starts


async def test_the_next_one_is_told(daemon: FakeDaemon) -> None:
    first, second = await two_starts(daemon, lambda: daemon.kill("batches"))
    assert first["worker"] == second["worker"]
    assert first["batches"] != second["batches"]


async def test_one_that_stands_still_is_killed(daemon: FakeDaemon) -> None:
    await two_starts(daemon, lambda: None, stall=2.0)
    stood_still = "stood still (no heartbeat for 2 s) and was killed"
    assert daemon.log.messages == [f"the batches {stood_still}; starting it again in 1 s"]
