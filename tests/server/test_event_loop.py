"""Tasks and threads of a loop, and which errors of theirs go where."""

import asyncio
import subprocess
import sys
import threading

import pytest

from server.event_loop import first_error, in_thread, until_first

SCRIPT = """
import asyncio
from server.event_loop import lasting_task
from workers.contract.process import open_log

async def work(): {work}

async def main():
    held = lasting_task(work(), "heartbeat")
    await asyncio.sleep(0.1)
    held.cancel()
    await asyncio.sleep(0.1)
    print("serves")

open_log("api", "info")
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("work", "status"),
    [("raise KeyError", 1), ("raise SystemExit(0)", 1), ("await asyncio.sleep(9)", 0), ("pass", 0)],
)
def test_the_end_of_a_lasting_task(work: str, status: int) -> None:
    command = [sys.executable, "-c", SCRIPT.format(work=work)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == status
    assert ended.stdout == ("" if status else "serves\n")
    assert ("task heartbeat has ended" in ended.stderr) == bool(status)


DEEP = ExceptionGroup("of another group", [ValueError("a")])


@pytest.mark.parametrize("errors", [[ValueError("a")], [ValueError("a"), KeyError("b")], [DEEP]])
def test_errors_of_the_kinds_are_raised_alone(errors: list[Exception]) -> None:
    with pytest.raises(ValueError, match="a"), first_error(ValueError, KeyError):
        raise ExceptionGroup("of tasks", errors)


def test_among_others_the_group_stays() -> None:
    both = ExceptionGroup("of tasks", [ValueError("a"), OSError("b")])
    with pytest.raises(ExceptionGroup) as raised, first_error(ValueError):
        raise both
    assert len(raised.value.exceptions) == 2
    with first_error(ValueError):
        pass


async def test_blocking_work_in_a_thread() -> None:
    assert await in_thread(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


async def test_nobody_waits_for_work_that_is_given_up() -> None:
    begun, go, done = (threading.Event() for _ in range(3))

    def work() -> None:
        begun.set()
        go.wait()
        done.set()

    waiting = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(begun.wait)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go.set()
    await asyncio.to_thread(done.wait)


async def test_until_first_gives_up_the_others_and_raises_what_the_first_one_raises() -> None:
    other = asyncio.ensure_future(asyncio.sleep(60))
    await until_first(asyncio.sleep(0), other)
    with pytest.raises(asyncio.CancelledError):
        await other

    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await until_first(fail(), asyncio.sleep(60))
