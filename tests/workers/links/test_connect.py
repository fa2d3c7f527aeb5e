"""Which transport connects stages on GPUs, as far as a machine without GPUs shows it."""

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from tests.workers.checkpoints import save_llama, with_execution, worker_config
from workers.contract.config import TransportName, WorkerConfig
from workers.links import peer_memory, process_groups
from workers.links.transport import Links, PipelineError, connect

Connect = Callable[[TransportName, bool], tuple[str, int]]


@pytest.fixture
def connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Connects the first of two stages. The name of what connected it, where the GPUs reach each
    other's memory and where they do not, and the slots of its ring outside torch's allocator."""
    save_llama(tmp_path)
    used: list[str] = []

    @contextmanager
    def joined(worker: WorkerConfig) -> Generator[None]:
        del worker
        yield

    def connecting(name: Literal["nccl", "peer memory"]) -> Callable[[WorkerConfig], Links]:
        def record(worker: WorkerConfig) -> Links:
            del worker
            used.append(name)
            return Links()

        return record

    monkeypatch.setattr(process_groups, "joined", joined)
    monkeypatch.setattr(process_groups, "all_agree", lambda own: own)
    monkeypatch.setattr(peer_memory, "connect_peer_memory", connecting("peer memory"))
    monkeypatch.setattr(process_groups, "connect_nccl", connecting("nccl"))

    def run(transport: TransportName, reached: bool) -> tuple[str, int]:
        monkeypatch.setattr(peer_memory, "reaches_peers", lambda worker: reached)
        worker = worker_config(tmp_path, num_stages=2)
        worker = with_execution(worker, devices=("cuda:0", "cuda:1"), transport=transport)
        links, execution = connect(worker), worker.execution
        slot = execution.max_step_tokens * execution.model.hidden_size * 4
        return used.pop(), links.ring_bytes // slot

    return run


def test_peer_memory_is_the_default_and_nccl_where_it_cannot_be(
    connected: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert connected("auto", True) == ("peer memory", 5)
        assert connected("peer-memory", True) == ("peer memory", 5)
        assert connected("nccl", True) == ("nccl", 0)
        assert caplog.messages == []
        assert connected("auto", False) == ("nccl", 0)
    assert caplog.messages == ["the GPUs cannot all write to each other's memory: NCCL is used"]


def test_peer_memory_that_is_asked_for_and_cannot_be_is_an_error(connected: Connect) -> None:
    with pytest.raises(PipelineError, match="the GPUs cuda:0, cuda:1 cannot all write to each"):
        connected("peer-memory", False)
