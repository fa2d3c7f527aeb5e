"""Which of a model's engines gets a job."""

import time
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from engine_core.client.engine_client import EngineClient
from engine_core.client.engines import Engines
from engine_core.messages import Beat, EngineInfo, JobOptions, KeyShare, Loss, Usage
from engine_core.refusal import RefusalError

INFO = EngineInfo("generate", 64, 50, 2, {"states": 2}, 0, 0)
BEAT = Beat(usage=Usage(), stages=[], step_sizes=[])
LOST = replace(BEAT, loss=Loss("a worker has gone", 0.0, None))
OVERLOADED = RefusalError("overloaded", "too much", retry_after=30.0)


@pytest.fixture
def engines() -> Engines:
    """Three that are ready, of which the second has waited longest for a job."""
    made = Engines(EngineClient("ipc://nowhere") for _ in range(3))
    for engine, sent_at in zip(made, (3.0, 1.0, 2.0), strict=True):
        engine.info, engine.beat, engine.sent_at = INFO, BEAT, sent_at
    return made


def wait(engine: EngineClient, seconds: float) -> None:
    engine.beat = replace(BEAT, expected_wait_s=seconds)


def refuse(engine: EngineClient) -> None:
    engine.breakers[0].refused(0, OVERLOADED)


def lose_core(engine: EngineClient) -> None:
    engine.info = engine.beat = None


def lose_stages(engine: EngineClient) -> None:
    engine.beat = LOST


def lose_for_good(engine: EngineClient) -> None:
    engine.dead = True


def test_equal_ones_take_turns(engines: Engines) -> None:
    chosen: list[int] = []
    for _ in range(6):
        engine = engines.choose()
        engine.sent_at = time.monotonic()
        chosen.append(engines.index(engine))
    assert chosen == [1, 2, 0, 1, 2, 0]


def test_the_one_with_the_fewest_rows(engines: Engines) -> None:
    for engine, rows in zip(engines, (4, 9, 5), strict=True):
        engine.rows = rows
    assert engines.choose() is engines[0]


def test_the_least_expected_wait_before_the_fewest_rows(engines: Engines) -> None:
    for engine, (seconds, rows) in zip(engines, ((5.5, 0), (3.9, 90), (3.1, 91)), strict=True):
        wait(engine, seconds)
        engine.rows = rows
    assert engines.choose() is engines[1], "what a heartbeat's age may hide is no difference"
    wait(engines[2], 2.9)
    assert engines.choose() is engines[2]


@pytest.mark.parametrize("worse", [refuse, lose_core, lose_stages, lose_for_good])
def test_none_that_cannot_begin_it_while_another_can(
    engines: Engines, worse: Callable[[EngineClient], None]
) -> None:
    for engine in engines[:2]:
        worse(engine)
    wait(engines[2], 100)
    engines[2].rows = 1000
    assert engines.choose() is engines[2]


def test_stages_that_come_back_keep_jobs_and_a_core_does_not(engines: Engines) -> None:
    lose_stages(engines[0])
    lose_core(engines[1])
    lose_for_good(engines[2])
    assert engines.choose() is engines[0]
    assert not engines.is_ready
    assert not engines.are_loading
    assert not engines.are_dead


def test_a_refusal_is_that_of_a_key(engines: Engines) -> None:
    refuse(engines[1])
    assert engines.choose() is engines[2]
    assert engines.choose(JobOptions(key=KeyShare(7))) is engines[1]
    assert engines.choose(JobOptions(priority=-1)) is engines[1], "it would begin earlier"
