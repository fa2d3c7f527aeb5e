"""Which transport connects stages on GPUs, as far as a machine without GPUs shows it, and what a
stage says if another is lost meanwhile."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.workers.checkpoints import with_execution, worker_config
from workers.contract.config import TransportName, WorkerConfig
from workers.links import peer_memory, process_groups
from workers.links.process_groups import all_agree, edge_groups, join
from workers.links.transport import Links, PipelineError, connect

Connect = Callable[[TransportName, bool], tuple[str, int]]


@pytest.fixture
def connected(llama: Path, monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Connects the first of two stages. The name of what connected it, where the GPUs reach each
    other's memory and where they do not, and the slots of its ring outside torch's allocator."""
    used: list[str] = []

    def connecting(name: str) -> Callable[[WorkerConfig], Links]:
        return lambda worker: used.append(name) or Links()

    monkeypatch.setattr(process_groups, "join", lambda worker: None)
    monkeypatch.setattr(process_groups, "all_agree", lambda own: own)
    monkeypatch.setattr(peer_memory, "connect_peer_memory", connecting("peer memory"))
    monkeypatch.setattr(process_groups, "connect_nccl", connecting("nccl"))

    def run(transport: TransportName, reached: bool) -> tuple[str, int]:
        monkeypatch.setattr(peer_memory, "reaches_peers", lambda worker: reached)
        worker = worker_config(llama, num_stages=2)
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


LOST = "Connection closed by peer [127.0.0.1]:40000"


@pytest.mark.parametrize(
    ("call", "connecting"),
    [
        ("init_process_group", join),
        ("new_group", lambda worker: edge_groups(worker.execution.num_stages, "gloo")),
        ("all_reduce", lambda _: all_agree(True)),
    ],
)
def test_a_call_that_needs_a_lost_stage_fails_at_a_link(
    call: str,
    connecting: Callable[[WorkerConfig], object],
    llama: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(LOST)

    monkeypatch.setattr(dist, call, fail)
    with pytest.raises(PipelineError, match="the stages cannot connect: Connection closed by"):
        connecting(worker_config(llama, num_stages=3))
