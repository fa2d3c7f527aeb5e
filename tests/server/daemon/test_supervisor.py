"""The daemon's life and death, with throw-away children instead of engines and servers."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from server.daemon.parts import RunningPart
from tests.e2e.daemon import is_alive
from tests.server.daemon.fake_daemon import FakeDaemon


@pytest.fixture
def daemon(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> FakeDaemon:
    return FakeDaemon(tmp_path, caplog)


def later(seconds: float, call: Callable[..., object], *arguments: object) -> None:
    asyncio.get_running_loop().call_later(seconds, call, *arguments)


def stop(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def never_ready() -> None:
    pytest.fail("it was never ready")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_servers_finish_before_the_engines_end(
    daemon: FakeDaemon, number: signal.Signals
) -> None:
    daemon.add_all(engine="0", worker="0", api="0.3")
    assert await daemon.run(lambda: stop(number)) == 0
    first, *others = daemon.diary()
    assert (first, {*others}) == ("api", {"engine", "worker"})


async def test_a_server_that_does_not_finish_in_time_is_killed(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.daemon.supervisor._DRAIN_MARGIN_S", 0.1)
    daemon.add_all(engine="0", api="ignore")
    assert await daemon.run(stop, drain=0.1) == 0
    assert daemon.diary() == ["engine"]
    assert not is_alive(daemon.pid("api"))


@pytest.mark.parametrize(
    ("on_terminate", "number", "diary"),
    [("ignore", signal.SIGINT, []), ("never", signal.SIGTERM, ["api"])],
)
async def test_a_second_signal_ends_everything_at_once(
    daemon: FakeDaemon, on_terminate: str, number: signal.Signals, diary: list[str]
) -> None:
    """Servers that can still say so."""
    daemon.add_all(engine="ignore", api=on_terminate)

    def stop_twice() -> None:
        stop()
        later(1.0, stop, number)

    started = time.monotonic()
    assert await daemon.run(stop_twice, drain=60) == 128 + number
    assert time.monotonic() - started < 25
    assert daemon.diary() == diary
    assert not any(is_alive(daemon.pid(name)) for name in ("engine", "api"))


@pytest.mark.parametrize("victim", ["engine", "worker", "api"])
async def test_a_killed_part_ends_the_daemon(daemon: FakeDaemon, victim: str) -> None:
    daemon.add_all(engine="0", worker="ignore", api="0.5")
    started = time.monotonic()
    assert await daemon.run(lambda: daemon.kill(victim)) == 1
    assert time.monotonic() - started < 25
    assert daemon.log.messages == [f"the {victim} was killed by SIGKILL; stopping"]
    assert ("api" in daemon.diary()) == (victim != "api"), "it has time to answer"
    assert all(not is_alive(daemon.pid(part.title)) for part in daemon.parts)


async def test_when_nothing_else_lives_they_get_a_moment_only(daemon: FakeDaemon) -> None:
    daemon.add_models("a")
    daemon.add_all(api="ignore")
    started = time.monotonic()
    assert await daemon.run(lambda: daemon.kill("engine of a"), drain=60) == 1
    assert time.monotonic() - started < 25


@pytest.mark.parametrize("victim", ["engine", "worker"])
async def test_when_a_model_dies_the_others_finish(
    daemon: FakeDaemon, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have more time than they would if nobody else lived."""
    monkeypatch.setattr("server.daemon.supervisor._ANSWER_S", 0.3)
    daemon.add_models("a", "b")
    daemon.add_all(api="1")
    assert await daemon.run(lambda: daemon.kill(f"{victim} of a")) == 1
    assert daemon.diary()[0] == "api"
    assert {"engine of b", "worker of b"} < set(daemon.diary())
    ((_, _, said),) = daemon.log.record_tuples
    assert said.startswith(f"the {victim} of a was killed by SIGKILL; ")


async def test_a_worker_that_was_killed_is_the_cause_though_its_engine_is_seen_to_end_first(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.daemon.supervisor._CAUSE_S", 2.0)
    daemon.add_models("a")
    daemon.add_all(api="0")

    def end() -> None:
        os.kill(daemon.pid("engine of a"), signal.SIGTERM)
        later(0.3, daemon.kill, "worker of a")

    assert await daemon.run(end) == 1
    assert daemon.log.messages == ["the worker of a was killed by SIGKILL; stopping"]


async def test_a_dead_engines_workers_end_with_it(daemon: FakeDaemon) -> None:
    daemon.add_models("a", "b")
    daemon.add_all(api="2")
    gone: list[list[bool]] = []

    def kill_one() -> None:
        daemon.kill("engine of a")
        later(1.0, lambda: gone.append([not is_alive(daemon.pid(f"worker of {m}")) for m in "ab"]))

    assert await daemon.run(kill_one) == 1
    assert gone == [[True, False]]


async def test_a_death_while_starting_ends_the_start(daemon: FakeDaemon) -> None:
    daemon.add("api", "api")
    daemon.add_program("worker 0", "worker", "raise SystemExit(3)")
    assert await daemon.run(never_ready) == 1
    assert daemon.log.messages == ["the worker 0 exited with status 3 while starting"]


def all_ended(processes: Sequence[RunningPart]) -> None:
    """Wait, without a look at them for anybody else."""
    for each in processes:
        os.waitid(os.P_PID, each.pid, os.WEXITED | os.WNOWAIT)


async def test_of_those_that_end_together_a_killed_worker_is_named(daemon: FakeDaemon) -> None:
    """Its neighbour and its engine core, which end because of it, may be seen before it."""
    daemon.add_program("engine", "engine", "raise SystemExit(1)")
    daemon.add_program("worker 0", "worker", "raise SystemExit(1)")
    daemon.add_program("worker 1", "worker", "import os; os.kill(os.getpid(), 9)")
    assert await daemon.run(never_ready, on_started=all_ended) == 1
    assert daemon.log.messages == ["the worker 1 was killed by SIGKILL while starting"]


async def test_a_start_has_a_deadline(daemon: FakeDaemon) -> None:
    daemon.add("engine", "engine")
    daemon.add_program("never up", "worker", "import sys; sys.stdin.read()")
    assert await daemon.run(never_ready, startup=0.5) == 1
    assert daemon.log.messages == ["not ready after 0.5 s (--startup-timeout)"]


async def test_a_death_while_draining_is_a_failure(daemon: FakeDaemon) -> None:
    daemon.add_all(engine="0", api="0.5")

    def stop_and_kill() -> None:
        stop()
        daemon.kill("engine")

    assert await daemon.run(stop_and_kill) == 1
    assert "engine was killed by SIGKILL" in daemon.log.messages[0]


async def test_a_terminal_reaches_only_the_supervisor(daemon: FakeDaemon) -> None:
    daemon.add("engine", "engine")
    assert await daemon.run(stop) == 0
    pid, session = (daemon.folder / "engine").read_text().split()
    assert session == pid
