"""What is agreed on with the stages at start: their layers, and the size of the KV cache."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
import zmq

from engine_core.executor.base import Capacity, WorkerLostError
from engine_core.executor.stage_link import StageLink
from tests.engine_core.configs import MODEL, engine_config
from workers.contract.messages import (
    AllocateKV,
    FromWorker,
    ToWorker,
    WorkerConnected,
    WorkerLoaded,
    WorkerReady,
)
from workers.contract.share import Share, shares_of

AnswerT = TypeVar("AnswerT", Share, AllocateKV)
BLOCK_BYTES = 1000


class Stages:
    """Starts an executor against stages that have these budgets; keeps what it told them."""

    def __init__(self, folder: Path) -> None:
        self._endpoint = f"ipc://{folder}/workers"
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._dealers: list[zmq.Socket[bytes]] = []
        self.shares: list[Share] = []
        self.allocated: list[int] = []

    def start(self, budgets: list[int], **changes) -> Capacity:
        num_stages = len(budgets)
        config = engine_config(
            num_stages=num_stages,
            model=msgspec.structs.replace(MODEL, num_layers=2 * num_stages),
            worker_endpoint=self._endpoint,
            block_size=4,
            **changes,
        )
        executor = StageLink(config, self._context)
        try:
            with ThreadPoolExecutor(1) as thread:
                starting = thread.submit(executor.start)
                for stage in range(num_stages):
                    self._dealers.append(self._open(stage))
                    self._send(stage, WorkerConnected(stage))
                for stage, budget in enumerate(budgets):
                    self.shares.append(self._receive(stage, Share))
                    self._send(stage, WorkerLoaded(stage, 10, 0.1, BLOCK_BYTES, budget))
                for stage, dealer in enumerate(self._dealers):
                    while not (starting.done() or dealer.poll(10)):
                        pass
                    if not starting.done():
                        self._answer(stage)
                return starting.result()
        finally:
            executor.close()

    def close(self) -> None:
        for dealer in self._dealers:
            dealer.close(0)
        self._context.term()

    def _open(self, stage: int) -> "zmq.Socket[bytes]":
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.IDENTITY, b"stage-%d" % stage)
        dealer.connect(self._endpoint)
        return dealer

    def _send(self, stage: int, message: FromWorker) -> None:
        self._dealers[stage].send(msgspec.msgpack.encode(message))

    def _answer(self, stage: int) -> None:
        self.allocated.append(self._receive(stage, AllocateKV).num_blocks)
        self._send(stage, WorkerReady(stage))

    def _receive(self, stage: int, kind: type[AnswerT]) -> AnswerT:
        message = msgspec.msgpack.decode(self._dealers[stage].recv(), type=ToWorker)
        assert isinstance(message, kind)
        return message


@pytest.fixture
def stages(tmp_path: Path) -> Iterator[Stages]:
    stages = Stages(tmp_path)
    yield stages
    stages.close()


def test_the_tightest_stage_decides(stages: Stages) -> None:
    capacity = stages.start([90_999, 70_999, 80_000], max_model_len=100)
    assert capacity == Capacity(weight_bytes=30, num_blocks=70)
    assert stages.allocated == [70, 70, 70]


def test_layers_are_split_evenly(stages: Stages) -> None:
    stages.start([90_000] * 3)
    assert stages.shares == shares_of([2, 2, 2])


def test_the_layers_that_a_person_asks_for(stages: Stages) -> None:
    stages.start([90_000] * 3, stage_layers=(1, 4, 1))
    assert stages.shares == shares_of([1, 4, 1])


def test_no_more_blocks_than_could_be_used(stages: Stages) -> None:
    capacity = stages.start([10_000_000], max_model_len=30, max_running=5)
    assert capacity.num_blocks == 5 * 8


def test_a_cache_below_the_context_length_is_a_warning_with_the_numbers(stages, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        capacity = stages.start([20_500], max_model_len=101)
    assert capacity.num_blocks == 20
    (record,) = caplog.records
    for number in ("20,500", "80 tokens", "101", "26,000"):
        assert number in record.getMessage()


def test_a_cache_that_holds_it_is_none(stages: Stages, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        stages.start([26_000], max_model_len=101)
    assert not caplog.records


def test_a_cache_without_one_block_is_an_error_with_the_numbers(stages: Stages) -> None:
    with pytest.raises(WorkerLostError, match=r"999 bytes .* 1,000: raise kv_cache_memory"):
        stages.start([50_000, 999])


def test_messages_call_a_setting_as_the_server_does(stages: Stages) -> None:
    names = {"kv_cache_memory": "models[1].kv_cache_memory of a.yaml"}
    with pytest.raises(WorkerLostError, match=r"raise models\[1\]\.kv_cache_memory of a\.yaml$"):
        stages.start([999], setting_names=names)
