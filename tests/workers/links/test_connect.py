"""Which transport connects stages on GPUs, as far as a machine without GPUs shows it, and what a
stage says if another is lost meanwhile."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch.distributed as dist

from tests.workers.checkpoints import with_execution, worker_config
from workers.contract.config import TransportName, WorkerConfig
from workers.links import peer_memory, process_groups
from workers.links.process_groups import group_of, join, votes
from workers.links.transport import Links, PipelineError, connect

Connect = Callable[..., tuple[list[str], list[int]]]


@pytest.fixture
def connected(llama: Path, monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Connects a stage. Among whom it shares memory, if it does, and the edges given to NCCL."""
    shared: list[str] = []
    by_nccl: list[int] = []

    def share_memory(worker: WorkerConfig, group: dist.ProcessGroup) -> Links:
        shared.append(f"{worker.stage} in {group}")
        return Links(ring_bytes=1)

    def use_nccl(worker: WorkerConfig, edges: Sequence[int]) -> Links:
        by_nccl[:] = edges
        return Links()

    monkeypatch.setattr(process_groups, "join", lambda worker, store: None)
    monkeypatch.setattr(process_groups, "group_of", lambda stages, _: stages)
    monkeypatch.setattr(peer_memory, "connect_peer_memory", share_memory)
    monkeypatch.setattr(process_groups, "connect_nccl", use_nccl)

    def run(
        transport: TransportName,
        reached: Sequence[bool],
        nodes: tuple[int, ...] = (),
        stage: int = 0,
    ) -> tuple[list[str], list[int]]:
        shared.clear()
        monkeypatch.setattr(peer_memory, "reaches_peers", lambda worker: reached[worker.stage])
        monkeypatch.setattr(process_groups, "votes", lambda own: reached)
        worker = worker_config(llama, num_stages=len(reached), stage=stage)
        devices = tuple(f"cuda:{number}" for number in range(len(reached)))
        worker = with_execution(worker, devices=devices, transport=transport, nodes=nodes)
        links = connect(worker, Mock())
        assert links.ring_bytes == len(shared)
        return list(shared), list(by_nccl)

    return run


ALL, ONLY_NODE_1 = [True] * 5, [True, False, True, True, True]
TWO_NODES = (0, 0, 1, 1, 1)


@pytest.mark.parametrize(
    ("transport", "reached", "nodes", "stage", "shared", "by_nccl"),
    [
        ("auto", ALL, (), 1, ["1 in (0, 1, 2, 3, 4)"], []),
        ("peer-memory", ALL, (), 0, ["0 in (0, 1, 2, 3, 4)"], []),
        ("nccl", ALL, (), 0, [], [0, 1, 2, 3]),
        ("auto", ALL, TWO_NODES, 0, ["0 in (0, 1)"], [1]),
        ("peer-memory", ALL, TWO_NODES, 3, ["3 in (2, 3, 4)"], [1]),
        ("nccl", ALL, TWO_NODES, 3, [], [0, 1, 2, 3]),
        ("auto", ONLY_NODE_1, TWO_NODES, 2, ["2 in (2, 3, 4)"], [0, 1]),
        ("auto", ONLY_NODE_1, TWO_NODES, 1, [], [0, 1]),
        # A stage that is alone on its host shares nothing.
        ("peer-memory", ALL, (0, 1, 1, 2, 3), 0, [], [0, 2, 3]),
    ],
)
def test_stages_of_a_host_share_memory_and_nccl_connects_all_others(
    connected: Connect,
    transport: TransportName,
    reached: list[bool],
    nodes: tuple[int, ...],
    stage: int,
    shared: list[str],
    by_nccl: list[int],
) -> None:
    assert connected(transport, reached, nodes, stage) == (shared, by_nccl)


@pytest.mark.parametrize("nodes", [(), TWO_NODES])
def test_memory_that_cannot_be_shared_is_told_once_unless_it_was_asked_for(
    connected: Connect, caplog: pytest.LogCaptureFixture, nodes: tuple[int, ...]
) -> None:
    gpus = "cuda:0, cuda:1" if nodes else "cuda:0, cuda:1, cuda:2, cuda:3, cuda:4"
    cannot = f"the GPUs {gpus} cannot all write to each other's memory"
    with caplog.at_level(logging.INFO):
        for stage in range(5):
            connected("auto", ONLY_NODE_1, nodes, stage)
            connected("nccl", ONLY_NODE_1, nodes, stage)
    assert caplog.messages == [f"{cannot}: NCCL is used"]
    with pytest.raises(PipelineError, match=f"{cannot}: use transport nccl"):
        connected("peer-memory", ONLY_NODE_1, nodes, 4)


LOST = "Connection closed by peer [127.0.0.1]:40000"


@pytest.mark.parametrize(
    ("call", "connecting"),
    [
        ("init_process_group", lambda worker: join(worker, Mock())),
        ("new_group", lambda _: group_of((0, 1), "gloo")),
        ("all_gather", lambda _: votes(True)),
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
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    with pytest.raises(PipelineError, match="the stages cannot connect: Connection closed by"):
        connecting(worker_config(llama, num_stages=3))
