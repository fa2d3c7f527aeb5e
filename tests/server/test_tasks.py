"""A task that nobody waits for ends its process if it fails."""

import subprocess
import sys

import pytest

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
