"""What is agreed on with the stages at start: their layers, and the size of the KV cache.
Which stage was lost first, or is found to stand still."""

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec
import pytest
import zmq

from engine_core.executor.stage_link import CHECK_SECONDS, CHECKS_A_BEAT, StageLink, StageWatch
from engine_core.executor.stage_start import Capacity, WorkerLostError
from tests.e2e.daemon import free_port
from tests.engine_core.configs import MODEL, engine_config
from tests.patience import PATIENCE
from tests.workers.intruders import INTRUDERS, connected
from workers.contract.curve import ClusterKeys
from workers.contract.messages import (
    AllocateKV,
    EncodeStep,
    FromWorker,
    LinkName,
    StageReport,
    StoreAnswer,
    StoreCall,
    ToWorker,
    WorkerBeat,
    WorkerConnected,
    WorkerFailed,
    WorkerLoaded,
    WorkerReady,
)
from workers.contract.process import SILENT_BEATS
from workers.contract.share import Share, shares_of

AnswerT = TypeVar("AnswerT", Share, AllocateKV, StoreAnswer)
BLOCK_BYTES = 1000


class Stages:
    """Starts an executor against stages that have these budgets; keeps what it told them."""

    def __init__(self, endpoint: str, keys: ClusterKeys | None = None) -> None:
        self.endpoint, self._keys = endpoint, keys
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._dealers: list[zmq.Socket[bytes]] = []
        self.shares: list[Share] = []
        self.allocated: list[int] = []

    def start(self, budgets: list[int], **changes) -> Capacity:
        with self.started(budgets, **changes) as (_, capacity):
            return capacity

    @contextmanager
    def started(self, budgets: list[int], **changes) -> Iterator[tuple[StageLink, Capacity]]:
        with self.connecting(len(budgets), **changes) as (executor, starting):
            for stage in range(len(budgets)):
                self.send(stage, WorkerConnected(stage))
            for stage, budget in enumerate(budgets):
                self.shares.append(self.received(stage, Share))
                self.send(stage, WorkerLoaded(stage, 10, 0.1, BLOCK_BYTES, budget))
            for stage, dealer in enumerate(self._dealers):
                while not (starting.done() or dealer.poll(10)):
                    pass
                if not starting.done():
                    self.allocated.append(self.received(stage, AllocateKV).num_blocks)
                    self.send(stage, WorkerReady(stage))
            yield executor, starting.result()

    @contextmanager
    def connecting(
        self, num_stages: int, **changes
    ) -> Iterator[tuple[StageLink, "Future[Capacity]"]]:
        """While no stage is connected to its neighbours yet."""
        config = engine_config(
            num_stages=num_stages,
            model=msgspec.structs.replace(MODEL, num_layers=2 * num_stages),
            worker_endpoint=self.endpoint,
            cluster_keys=self._keys,
            block_size=4,
            **changes,
        )
        executor = StageLink(config, self._context)
        try:
            with ThreadPoolExecutor(1) as thread:
                starting = thread.submit(executor.start)
                for stage in range(num_stages):
                    dealer = self._context.socket(zmq.DEALER)
                    dealer.setsockopt(zmq.IDENTITY, bytes(LinkName("stage", stage, 0)))
                    if self._keys is not None:
                        self._keys.secure_connector(dealer, self.endpoint)
                    dealer.connect(self.endpoint)
                    self._dealers.append(dealer)
                    self.send(stage, WorkerBeat(stage, -1))
                yield executor, starting
        finally:
            executor.close()

    def lose(self, stage: int) -> None:
        """Close the stage's connection, as the kernel does with a process that ends."""
        self._dealers[stage].close(0)

    def close(self) -> None:
        for dealer in self._dealers:
            dealer.close(0)
        self._context.term()

    def send(self, stage: int, message: FromWorker) -> None:
        self._dealers[stage].send(msgspec.msgpack.encode(message))

    def received(self, stage: int, kind: type[AnswerT]) -> AnswerT:
        message = msgspec.msgpack.decode(self._dealers[stage].recv(), type=ToWorker)
        assert isinstance(message, kind)
        return message


KEYS = ClusterKeys.of(b"the secret of a cluster")


@pytest.fixture
def remote_stages() -> Iterator[Stages]:
    """On other hosts."""
    stages = Stages(f"tcp://127.0.0.1:{free_port()}", KEYS)
    yield stages
    stages.close()


@pytest.fixture(params=["one host", "several"])
def stages(
    request: pytest.FixtureRequest, tmp_path: Path, remote_stages: Stages
) -> Iterator[Stages]:
    if request.param == "several":
        yield remote_stages
        return
    stages = Stages(f"ipc://{tmp_path}/workers")
    yield stages
    stages.close()


def test_each_gets_its_layers_and_the_tightest_decides_on_blocks(stages: Stages) -> None:
    capacity = stages.start([90_999, 70_999, 80_000], max_model_len=100, stage_layers=(1, 4, 1))
    assert capacity == Capacity(weight_bytes=30, num_blocks=70)
    assert stages.allocated == [70, 70, 70]
    assert stages.shares == shares_of([1, 4, 1])


def test_no_more_blocks_than_could_be_used(stages: Stages) -> None:
    capacity = stages.start([10_000_000], max_model_len=30, max_running=5)
    assert capacity.num_blocks == 5 * 8


@pytest.mark.parametrize(("budget", "warned"), [(20_500, True), (26_000, False)])
def test_a_cache_below_the_context_length_is_a_warning_with_the_numbers(
    stages: Stages, caplog: pytest.LogCaptureFixture, budget: int, warned: bool
) -> None:
    with caplog.at_level(logging.WARNING):
        capacity = stages.start([budget], max_model_len=101)
    assert capacity.num_blocks == budget // BLOCK_BYTES
    assert len(caplog.messages) == warned
    for message in caplog.messages:
        assert all(number in message for number in ("20,500", "80 tokens", "101", "26,000"))


@pytest.mark.parametrize("setting", ["kv_cache_memory", "models[1].kv_cache_memory of a.yaml"])
def test_a_cache_without_one_block_is_an_error_with_the_numbers(
    stages: Stages, setting: str
) -> None:
    """It calls the setting as the server does."""
    with pytest.raises(WorkerLostError, match=r"999 bytes .* 1,000: raise ") as lost:
        stages.start([50_000, 999], setting_names={"kv_cache_memory": setting})
    assert str(lost.value).endswith(f": raise {setting}")


BROKEN = "nothing comes from stage 1"
NOTICED = WorkerFailed(2, BROKEN, neighbour_lost=True)
LAST_WORDS = WorkerFailed(1, "the device has failed")
GOES = None
"""The process of stage 1 ends."""


def happen(stages: Stages, *events: WorkerFailed | None) -> None:
    for event in events:
        if event is None:
            stages.lose(1)
        else:
            stages.send(event.stage, event)
        time.sleep(0.02)


def poll_until_lost(executor: StageLink) -> NoReturn:
    poller = zmq.Poller()
    poller.register(executor.results, zmq.POLLIN)
    poller.register(executor.losses, zmq.POLLIN)
    while True:
        if executor.losses in dict(poller.poll()):
            executor.check_losses()
        executor.poll()


@pytest.mark.parametrize(
    ("events", "cause"),
    [
        ((GOES,), "worker 1 of m has gone"),
        ((NOTICED, GOES), "worker 1 of m has gone"),
        ((GOES, NOTICED), "worker 1 of m has gone"),
        ((NOTICED, LAST_WORDS, GOES), "stage 1: the device has failed"),
        ((NOTICED,), f"stage 2: {BROKEN}"),
    ],
    ids=["it goes", "noticed first", "noticed later", "last words", "all live"],
)
def test_the_cause_of_a_loss_is_named(
    stages: Stages, events: tuple[WorkerFailed | None], cause: str
) -> None:
    with stages.started([50_000] * 3, name="m") as (executor, _), ThreadPoolExecutor(1) as thread:
        thread.submit(happen, stages, *events)
        with pytest.raises(WorkerLostError) as lost:
            poll_until_lost(executor)
    assert str(lost.value) == cause


@pytest.mark.parametrize("events", [(NOTICED, GOES), (GOES, NOTICED)])
def test_a_stage_that_goes_while_all_connect_is_named(
    stages: Stages, events: tuple[WorkerFailed | None]
) -> None:
    with stages.connecting(3, name="m") as (_, starting):
        time.sleep(0.1)
        happen(stages, *events)
        with pytest.raises(WorkerLostError, match=r"^worker 1 of m has gone$"):
            starting.result(PATIENCE)


def test_a_stage_that_cannot_be_sent_to_is_named(stages: Stages) -> None:
    with stages.started([50_000] * 3, name="m") as (executor, _):
        stages.lose(1)
        time.sleep(0.1)
        with pytest.raises(WorkerLostError, match=r"^worker 1 of m has gone$"):
            executor.submit(EncodeStep(step=0, tokens=b"", query_lens=b""))


def never_lost(executor: StageLink) -> None:
    """Take what has come, as the engine core's loop does."""
    poller = zmq.Poller()
    poller.register(executor.results, zmq.POLLIN)
    poller.register(executor.losses, zmq.POLLIN)
    while ready := dict(poller.poll(200)):
        if executor.losses in ready:
            executor.check_losses()
        assert executor.poll() is None


@pytest.mark.parametrize("intruder", INTRUDERS)
def test_strangers_change_nothing(remote_stages: Stages, intruder: str) -> None:
    with remote_stages.started([50_000] * 2) as (executor, _):
        INTRUDERS[intruder](remote_stages.endpoint, KEYS)
        never_lost(executor)
        # Its file descriptor is another connection's now, which is lost.
        remote_stages.lose(1)
        with pytest.raises(WorkerLostError, match="worker 1 of test has gone"):
            poll_until_lost(executor)


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        (b"stage-0-0", [msgspec.msgpack.encode(NOTICED)] * 3),
        (b"someone-2-0", [msgspec.msgpack.encode(NOTICED)]),
        (b"someone", [msgspec.msgpack.encode(NOTICED)]),
        (b"failure-0-0", [b"", b"\xc1", msgspec.msgpack.encode({"stage": 0}), b"\x93" * 1000]),
    ],
    ids=["a name twice", "no such stage", "no stage", "no message"],
)
def test_who_has_the_keys_is_heard_under_a_stages_name_that_is_free(
    remote_stages: Stages, name: bytes, messages: list[bytes]
) -> None:
    with remote_stages.started([50_000] * 2) as (executor, _):
        with connected(remote_stages.endpoint, KEYS.secure_connector, name) as dealer:
            for message in messages:
                dealer.send(message)
                dealer.send_multipart([message, message])
            never_lost(executor)
            executor.submit(EncodeStep(step=0, tokens=b"", query_lens=b""))
            assert not dealer.poll(50)
        never_lost(executor)


def test_process_groups_find_each_other_before_the_start(stages: Stages) -> None:
    with stages.connecting(2) as (_, starting):
        for stage in range(2):
            stages.send(stage, StoreCall("add", "met", amount=1))
            assert stages.received(stage, StoreAnswer) == StoreAnswer(stage + 1)
        stages.lose(0)
        with pytest.raises(WorkerLostError, match="worker 0 of test has gone"):
            starting.result(PATIENCE)


def test_process_groups_are_answered_while_steps_run(stages: Stages) -> None:
    with stages.started([50_000] * 2) as (executor, _):
        stages.send(1, StoreCall("set", "met", b"all"))
        stages.send(1, StoreCall("check", keys=["met"]))
        never_lost(executor)
        assert [stages.received(1, StoreAnswer) for _ in range(2)] == [
            StoreAnswer(None),
            StoreAnswer(True),
        ]


@contextmanager
def started_again(stages: Stages, executor: StageLink, restarts: int) -> Iterator[None]:
    """Others in place of two stages, which are ready before anybody has noticed a loss."""
    others = Stages(stages.endpoint)
    for stage in range(2):
        dealer = others._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.IDENTITY, bytes(LinkName("stage", stage, restarts)))
        dealer.connect(stages.endpoint)
        others._dealers.append(dealer)
        for message in (WorkerBeat(stage, -1), WorkerConnected(stage)):
            others.send(stage, message)
    try:
        with pytest.raises(WorkerLostError, match=r"^the stages of m were started again$"):
            poll_until_lost(executor)
        executor.begin_again()
        assert not executor.is_ready
        for stage in range(2):
            poll_until(executor, lambda stage=stage: others._dealers[stage].poll(0))
            stages.shares.append(others.received(stage, Share))
            others.send(stage, WorkerLoaded(stage, 10, 0.1, BLOCK_BYTES, 1))
        for stage in range(2):
            poll_until(executor, lambda stage=stage: others._dealers[stage].poll(0))
            stages.allocated.append(others.received(stage, AllocateKV).num_blocks)
            others.send(stage, WorkerReady(stage))
        poll_until(executor, lambda: executor.is_ready)
        yield
    finally:
        others.close()


def poll_until(executor: StageLink, done: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < until
        executor.poll()


def test_stages_that_are_started_again_get_what_the_first_ones_had(tmp_path: Path) -> None:
    """Requests are admitted by the capacity of the first, though these say that they hold less.
    Nothing more is heard of the first, whatever they have still sent."""
    stages = Stages(f"ipc://{tmp_path}/workers")
    with (
        stages.started([50_000] * 2, name="m", stage_layers=(1, 3)) as (executor, _),
        started_again(stages, executor, restarts=3),
    ):
        assert executor.restarts == 3
        stages.send(0, StageReport(0, 7))
        stages.lose(1)
        stages.send(0, WorkerFailed(0, "too late"))
        time.sleep(0.1)
        never_lost(executor)
    stages.close()
    assert stages.shares == shares_of([1, 3]) * 2
    assert stages.allocated == [50] * 4


def test_a_start_that_takes_too_long_is_a_loss(stages: Stages) -> None:
    names = {"startup_timeout": "--startup"}
    with stages.started([50_000], name="m", startup_timeout=3.0, setting_names=names) as (link, _):
        link.begin_again()
        for _ in range(round(3 / CHECK_SECONDS)):
            link.check(None)
        why = r"the stages of m are not ready after 3 s \(--startup\)"
        with pytest.raises(WorkerLostError, match=why):
            link.check(None)


def watch_of(num_stages: int, stall_timeout: float = 60) -> StageWatch:
    names = {"stall_timeout": "--stall"}
    config = engine_config(
        name="m", num_stages=num_stages, setting_names=names, stall_timeout=stall_timeout
    )
    return StageWatch(config)


def let_pass(watch: StageWatch, seconds: float, oldest: int | None, last: dict[int, int]) -> None:
    """Let so many seconds pass with `oldest` in flight. Stages that beat report a `last` step."""
    for tick in range(round(seconds / CHECK_SECONDS)):
        if tick % CHECKS_A_BEAT == 0:
            for stage, finished in last.items():
                watch.heard(WorkerBeat(stage, finished))
        watch.tick(oldest)


def test_an_idle_stage_that_is_silent_stands_still() -> None:
    watch = watch_of(2)
    let_pass(watch, 100, None, {0: 5, 1: 5})
    let_pass(watch, SILENT_BEATS - 1, None, {0: 5})
    with pytest.raises(WorkerLostError, match="worker 1 of m stands still: no heartbeat for 8 s"):
        let_pass(watch, 1, None, {0: 5})


def test_silence_means_nothing_while_a_step_is_in_flight_and_counts_from_its_end() -> None:
    watch = watch_of(1)
    let_pass(watch, 59, 0, {})
    let_pass(watch, SILENT_BEATS, None, {})
    let_pass(watch, 59, 1, {})
    let_pass(watch, 59, 2, {})


@pytest.mark.parametrize(
    ("finished", "stage"),
    [({0: 6, 1: 6}, 0), ({0: 8, 1: 6}, 1), ({0: 7, 1: 7}, 1), ({0: 6}, 1)],
    ids=["first behind", "second behind", "device behind", "second silent, first waits for it"],
)
def test_of_a_step_that_does_not_end_the_first_stage_that_is_behind_is_named(
    finished: dict[int, int], stage: int
) -> None:
    watch = watch_of(2)
    let_pass(watch, 60, 7, finished)
    why = r"step 7 has not ended in 60 s \(--stall\)"
    with pytest.raises(WorkerLostError, match=f"worker {stage} of m stands still: {why}"):
        let_pass(watch, 1, 7, finished)


def test_with_a_timeout_of_0_nothing_is_watched() -> None:
    watch = watch_of(1, 0)
    let_pass(watch, 1000, None, {})
    let_pass(watch, 1000, 7, {})


@pytest.mark.parametrize("seconds", [0.1, 1.6, 2.0])
def test_a_step_is_found_within_a_check_of_the_timeout(seconds: float) -> None:
    watch = watch_of(2, seconds)
    let_pass(watch, 100, None, {0: 5, 1: 5})
    let_pass(watch, seconds // CHECK_SECONDS * CHECK_SECONDS, 6, {0: 6})
    with pytest.raises(WorkerLostError, match="step 6 has not ended"):
        let_pass(watch, 2 * CHECK_SECONDS, 6, {0: 6})
