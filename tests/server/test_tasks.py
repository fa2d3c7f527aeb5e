"""A task that nobody waits for ends its process if it fails; errors of groups of tasks."""

import asyncio
import subprocess
import sys

import pytest

from server.tasks import first_error

SCRIPT = """
import asyncio
from server.tasks import lasting_task
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
def test_its_end(work: str, status: int) -> None:
    command = [sys.executable, "-c", SCRIPT.format(work=work)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == status
    assert ended.stdout == ("" if status else "serves\n")
    assert ("task heartbeat has ended" in ended.stderr) == bool(status)


async def fail(error: Exception) -> None:
    raise error


async def together(*errors: Exception) -> None:
    async with asyncio.TaskGroup() as group:
        for error in errors:
            group.create_task(fail(error))


@pytest.mark.parametrize("errors", [(ValueError("a"),), (ValueError("a"), KeyError("b"))])
async def test_errors_of_the_kinds_are_raised_alone(errors: tuple[Exception, ...]) -> None:
    with pytest.raises(ValueError, match="a"), first_error(ValueError, KeyError):
        await together(*errors)


async def test_one_that_stands_deep_is_found() -> None:
    with pytest.raises(ValueError, match="deep"), first_error(ValueError):
        async with asyncio.TaskGroup() as group:
            group.create_task(together(ValueError("deep")))


async def test_among_others_the_group_stays() -> None:
    with pytest.raises(ExceptionGroup) as raised, first_error(ValueError):
        await together(ValueError("a"), OSError("b"))
    assert len(raised.value.exceptions) == 2


async def test_without_an_error_nothing_happens() -> None:
    with first_error(ValueError):
        await together()
