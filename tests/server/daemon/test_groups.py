"""What is started again when a part is lost, with throw-away children in place of processes."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

import pytest

from server.daemon import groups
from server.daemon.groups import ever_later
from server.daemon.parts import RunningPart
from server.models.model_files import ModelFiles, ModelFilesError
from tests.e2e.daemon import is_alive
from tests.server.daemon.fake_daemon import FakeDaemon

TELLER = """
import socket, sys, time
from pathlib import Path
folder, name, restarts = Path(sys.argv[1]), sys.argv[2], sys.argv[-1]
beat = socket.socket(fileno=0)
(folder / f"{name}.new").write_text("1")
(folder / f"{name}.new").rename(folder / name)
if restarts == "0":
    time.sleep(0.5)
    beat.send(b"\\n7 of another start\\n0 worker 0 of a stands still\\n")
while beat.recv(1):
    pass
"""
"""An engine core that calls its first stages lost."""


SPARED = """
import os, sys
from pathlib import Path
folder, name, restarts = Path(sys.argv[1]), sys.argv[2], sys.argv[-1]
if restarts == "spare":
    (folder / f"spare of {name}").write_text(str(os.getpid()))
    restarts = os.read(0, 64).decode().strip()
    if not restarts:
        sys.exit()
(folder / f"{name}.new").write_text(f"{os.getpid()} {restarts}")
(folder / f"{name}.new").rename(folder / name)
while os.read(0, 1):
    pass
"""
"""A stage, or a spare of one."""


@pytest.fixture
def daemon(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> FakeDaemon:
    daemon = FakeDaemon(tmp_path, caplog)
    daemon.add_models("a", "b")
    daemon.add("worker 1 of a", "worker", model="a")
    daemon.add("api 0", "api")
    daemon.add("api 1", "api")
    return daemon


class Starts:
    """The process ids of each start, by name. The last one expected ends the daemon."""

    def __init__(self, expected: int, then: Callable[[], object] | None = None) -> None:
        self.pids: list[dict[str, int]] = []
        self._expected = expected
        self._then = then or (lambda: os.kill(os.getpid(), signal.SIGTERM))

    def __call__(self, processes: Sequence[RunningPart]) -> None:
        self.pids.append({process.part.title: process.pid for process in processes})
        if len(self.pids) == self._expected:
            # Once all can be told to end.
            asyncio.get_running_loop().call_later(1.0, self._then)

    def others(self) -> set[str]:
        """Names of those that are not the same in the last two starts."""
        before, after = self.pids[-2:]
        return {name for name in after if after[name] != before[name]}


@pytest.mark.parametrize(
    ("victim", "others", "what"),
    [
        ("worker of a", {"worker of a", "worker 1 of a"}, "all stages of a"),
        (
            "engine of a",
            {"engine of a", "worker of a", "worker 1 of a"},
            "the engine of a",
        ),
        ("api 1", {"api 1"}, "it"),
    ],
)
async def test_what_is_lost_together_starts_again_together(
    daemon: FakeDaemon, victim: str, others: set[str], what: str
) -> None:
    starts = Starts(2)
    code = await daemon.run(lambda: daemon.kill(victim), restarts=1, on_started=starts)
    assert code == 0
    assert starts.others() == others
    said = f"the {victim} was killed by SIGKILL; starting {what} again"
    warnings = [line for line in daemon.log.messages if line.startswith("the ")]
    assert warnings == [said]
    assert not any(is_alive(pid) for start in starts.pids for pid in start.values())


@pytest.mark.parametrize(
    ("victim", "others", "what"),
    [
        ("worker of a", {"worker of a"}, "all stages of a"),
        ("holder of a", {"holder of a", "worker of a"}, "all stages of a"),
        ("engine of a", {"engine of a", "holder of a", "worker of a"}, "the engine of a"),
    ],
)
async def test_a_holder_of_weights_outlives_stages_that_do_not_outlive_it(
    tmp_path: Path, caplog, victim: str, others: set[str], what: str
) -> None:
    daemon, starts = FakeDaemon(tmp_path, caplog), Starts(2)
    daemon.add_models("a")
    daemon.add("holder of a", "holder", model="a")
    code = await daemon.run(lambda: daemon.kill(victim), restarts=1, on_started=starts)
    assert code == 0
    assert starts.others() == others
    assert caplog.messages[0] == f"the {victim} was killed by SIGKILL; starting {what} again"


async def test_stages_that_the_core_calls_lost_are_killed(tmp_path: Path, caplog) -> None:
    """They may live, and stand still."""
    daemon, starts = FakeDaemon(tmp_path, caplog), Starts(2)
    daemon.add_program("engine of a", "engine", TELLER, model="a")
    daemon.add("worker of a", "worker", "ignore", model="a")
    assert await daemon.run(lambda: None, restarts=1, on_started=starts) == 0
    assert starts.others() == {"worker of a"}
    assert caplog.messages[0] == "worker 0 of a stands still; starting all stages of a again"


@pytest.fixture
def spared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> FakeDaemon:
    """A stage gets a spare 0.2 s after it has started."""
    monkeypatch.setattr(groups, "_SPARE_AFTER_S", 0.2)
    daemon = FakeDaemon(tmp_path, caplog)
    daemon.add("engine of a", "engine", model="a")
    daemon.add_program("worker of a", "worker", SPARED, model="a", spared=True)
    return daemon


async def until(what: Callable[[], bool]) -> None:
    while not what():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def until_written(file: Path) -> str:
    await until(lambda: file.exists() and bool(_text(file)))
    return _text(file)


def _text(file: Path) -> str:
    return file.read_text()


class InTask:
    """Work that begins when this is called."""

    def __init__(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        self._work = work

    def __call__(self) -> None:
        self.task = asyncio.create_task(self._work())


async def test_a_spare_takes_the_place_of_a_lost_stage(spared: FakeDaemon) -> None:
    spares: list[str] = []
    stage, file = (spared.folder / f"{kind}worker of a" for kind in ("", "spare of "))

    async def lose_twice() -> None:
        for restarts in (1, 2):
            spares.append(await until_written(file))
            file.unlink()
            spared.kill("worker of a")
            await until(lambda: _text(stage) == f"{spares[-1]} {restarts}")  # noqa: B023
        spares.append(await until_written(file))
        os.kill(os.getpid(), signal.SIGTERM)

    starts, losses = Starts(9), InTask(lose_twice)
    assert await spared.run(losses, restarts=2, on_started=starts) == 0
    await losses.task
    assert [each["worker of a"] for each in starts.pids[1:]] == [int(pid) for pid in spares[:2]]
    assert not is_alive(int(spares[2]))  # it ends with the daemon


async def test_a_spare_that_has_ended_is_none(spared: FakeDaemon) -> None:
    file = spared.folder / "spare of worker of a"

    async def kill_both() -> None:
        os.kill(int(await until_written(file)), signal.SIGKILL)
        await asyncio.sleep(0.5)
        spared.kill("worker of a")

    starts, losses = Starts(2), InTask(kill_both)
    assert await spared.run(losses, restarts=1, on_started=starts) == 0
    await losses.task
    assert starts.others() == {"worker of a"}
    assert (spared.folder / "worker of a").read_text().endswith(" 1")


async def test_what_is_not_started_again_has_no_spare(spared: FakeDaemon) -> None:
    def end() -> None:
        asyncio.get_running_loop().call_later(1.0, os.kill, os.getpid(), signal.SIGTERM)

    assert await spared.run(end) == 0
    assert not (spared.folder / "spare of worker of a").exists()


async def test_one_loss_too_many_ends_the_daemon(daemon: FakeDaemon) -> None:
    starts = Starts(3, lambda: daemon.kill("api 0"))

    def kill_again() -> None:
        daemon.kill("api 0")
        asyncio.get_running_loop().call_later(1.5, daemon.kill, "api 0")

    assert await daemon.run(kill_again, restarts=2, on_started=starts) == 1
    assert len(starts.pids) == 3
    assert daemon.log.messages[-1] == "the api 0 was killed by SIGKILL; stopping"


async def test_each_model_has_losses_of_its_own(daemon: FakeDaemon) -> None:
    starts = Starts(3)

    def kill_both() -> None:
        daemon.kill("worker of a")
        daemon.kill("engine of b")

    assert await daemon.run(kill_both, restarts=1, on_started=starts) == 0


async def test_stages_that_are_lost_while_the_daemon_drains_come_back(daemon: FakeDaemon) -> None:
    """What runs waits for them."""
    for part in daemon.parts:
        if part.role == "api":
            part.command[-1] = "3"
    starts = Starts(2, lambda: None)

    def stop_and_kill() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        daemon.kill("worker of b")

    assert await daemon.run(stop_and_kill, restarts=1, on_started=starts) == 0
    assert starts.others() == {"worker of b"}


@pytest.mark.parametrize("change", ["size", "time", "file", "gone"])
async def test_a_model_that_has_changed_on_disk_is_not_started_again(
    daemon: FakeDaemon, tmp_path: Path, change: str
) -> None:
    folder = tmp_path / "model"
    (folder / "1_Pooling").mkdir(parents=True)
    weights, other = folder / "model.safetensors", folder / "1_Pooling" / "config.json"
    for file in (weights, other, folder / "README.md"):
        file.write_text("12")
    files = {"a": ModelFiles(folder)}

    def lose() -> None:
        (folder / "README.md").write_text("other words")
        match change:
            case "size":
                other.write_text("123")
            case "time":
                os.utime(weights, ns=(0, 5))
            case "file":
                (folder / "new").write_text("12")
                (folder / "new").rename(weights)
            case _:
                weights.unlink()
        daemon.kill("worker of a")

    assert await daemon.run(lose, restarts=9, files=files) == 1
    changed = other if change == "size" else weights
    reason = f"{changed} has changed since the daemon's start"
    assert daemon.log.messages[-1] == f"{reason}; stopping"
    with pytest.raises(ModelFilesError, match=reason):
        files["a"].check()


async def test_files_that_are_as_they_were_are_no_hindrance(
    daemon: FakeDaemon, tmp_path: Path
) -> None:
    files = {name: ModelFiles(tmp_path / name) for name in "ab"}
    starts = Starts(2)
    kill = lambda: daemon.kill("api 0")  # noqa: E731
    assert await daemon.run(kill, restarts=1, on_started=starts, files=files) == 0


def test_what_keeps_ending_is_started_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, pause = 1000.0, ever_later()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pauses: list[float | None] = []
    for lived in (0, 0, 1, 5, 0, 0, 0, 61, 0):
        now += lived
        pauses.append(pause())
        now += pauses[-1] or 0.0
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 1, 2]
