"""What lies where in the memory that GPUs share, and which GPUs may: all that needs no GPU."""

import inspect
import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed._symmetric_memory as symmetric
from torch._C._distributed_c10d import _SymmetricMemory

from tests.workers.checkpoints import save_bert, with_execution, worker_config
from workers.contract.config import WorkerConfig
from workers.contract.process import NO_MULTICAST
from workers.links import peer_memory
from workers.links.peer_memory import (
    PeerLayout,
    SymmetricMemory,
    has_symmetric_memory,
    reaches_peers,
)

ALIGNMENT = 256
LAYOUT = PeerLayout(num_slots=5, step_tokens=7, state_size=33, dtype=torch.bfloat16, num_tokens=10)
"""Sizes of which none is a multiple of the alignment."""

GPUS = ("cuda:4", "cuda:5", "cuda:6", "cuda:7")


def memory_of(layout: PeerLayout) -> torch.Tensor:
    return torch.zeros(layout.nbytes, dtype=torch.uint8)


def test_counters_tokens_and_slots_are_aligned_and_do_not_overlap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_memory, "StreamCounter", lambda memory: memory)
    memory = memory_of(LAYOUT)
    slots = [LAYOUT.states(memory, step, LAYOUT.step_tokens) for step in range(LAYOUT.num_slots)]
    counters: list[Any] = [LAYOUT.arrivals(memory), LAYOUT.token_arrivals(memory)]
    found = [
        (start := part.data_ptr() - memory.data_ptr(), start + part.nbytes)
        for part in (*counters, LAYOUT.last_tokens(memory), *slots)
    ]
    # Each counter has as many bytes for itself as the alignment.
    assert found[:2] == [(0, 8), (ALIGNMENT, ALIGNMENT + 8)]
    assert all(start % ALIGNMENT == 0 for start, _ in found)
    assert all(end <= start for (_, end), (start, _) in pairwise(found))
    assert found[-1][1] <= LAYOUT.nbytes < found[-1][1] + ALIGNMENT


def test_steps_in_flight_have_slots_of_their_own_and_the_next_step_the_oldest_ones() -> None:
    memory, most = memory_of(LAYOUT), LAYOUT.step_tokens
    for step in range(3, 3 + LAYOUT.num_slots):
        LAYOUT.states(memory, step, most).fill_(step)
    for step in range(3, 3 + LAYOUT.num_slots):
        states = LAYOUT.states(memory, step, 2)
        assert states.shape == (2, LAYOUT.state_size)
        assert bool((states == step).all())
    tokens = LAYOUT.last_tokens(memory)
    assert (tokens.dtype, tokens.shape) == (torch.int64, (LAYOUT.num_tokens,))
    assert not tokens.any()
    first, again = (LAYOUT.states(memory, step, 1) for step in (3, 3 + LAYOUT.num_slots))
    assert first.data_ptr() == again.data_ptr()
    with pytest.raises(ValueError, match="a step of 8 tokens in a slot for 7"):
        LAYOUT.states(memory, 1, most + 1)


@pytest.mark.parametrize("steps_ahead", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_ring_takes_the_bytes_that_the_configuration_counts(
    tmp_path: Path, llama: Path, steps_ahead: int, dtype: str
) -> None:
    """The budgets of memory subtract these, before there is any layout."""
    worker = worker_config(llama, num_stages=3)
    config = with_execution(worker, steps_ahead=steps_ahead, dtype=dtype).execution
    layout = PeerLayout.of(config)
    assert layout.num_slots == config.max_depth
    assert layout.num_tokens == config.max_running + 1
    save_bert(tmp_path)
    encoder = with_execution(worker_config(tmp_path, num_stages=2, task="embed"), max_step_tokens=1)
    longest = PeerLayout.of(encoder.execution).step_tokens
    assert longest == encoder.execution.max_model_len > 1  # a slot holds its longest text
    besides = layout.nbytes - config.activation_bytes(0)
    assert 0 < besides <= 3 * ALIGNMENT + 8 * layout.num_tokens + ALIGNMENT * layout.num_slots


def test_all_gpus_must_reach_each_other_not_only_neighbours(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = {frozenset({0, 2})}  # the first stage and the third, which send each other nothing

    def reaches(own: torch.device, peer: torch.device) -> bool:
        assert own != peer
        return frozenset({own.index, peer.index}) not in apart

    monkeypatch.setattr(peer_memory, "has_stream_counters", lambda device: True)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", reaches)
    whole = with_execution(worker_config(llama), devices=GPUS).execution
    stages = [WorkerConfig(execution=whole, stage=stage) for stage in range(4)]
    assert [reaches_peers(stage) for stage in stages] == [False, True, False, True]
    apart.clear()
    assert all(reaches_peers(stage) for stage in stages)
    one = with_execution(worker_config(llama), devices=("cuda:0", "cuda:0"))
    assert reaches_peers(one), "a GPU reaches itself"


def test_torch_has_the_names_that_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_symmetric_memory()
    assert {"dtype", "device"} <= inspect.signature(symmetric.empty).parameters.keys()
    assert [*inspect.signature(symmetric.rendezvous).parameters] == ["tensor", "group"]
    # A method of C++: its docstring begins with its signature.
    buffer = inspect.getdoc(_SymmetricMemory.get_buffer) or ""
    assert re.findall(r"(\w+): ", buffer)[:4] == ["self", "rank", "sizes", "dtype"]
    monkeypatch.delattr(symmetric, "rendezvous")
    assert not has_symmetric_memory()


@pytest.mark.parametrize("name", NO_MULTICAST)
@pytest.mark.parametrize("value", [None, "2", ""])
def test_nothing_is_shared_where_multicast_is_not_switched_off(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str | None
) -> None:
    monkeypatch.delenv(name)
    if value is not None:
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match=f"{name} is not {NO_MULTICAST[name]}"):
        SymmetricMemory(4096, torch.device("cpu"), Mock())
