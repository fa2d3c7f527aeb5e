"""A job to be killed: `python -m tests.server.batches.slow_job SOURCE LOG`."""

import asyncio
import sys
from pathlib import Path

from server.batches import file_job
from server.batches.file_job import FileJob
from tests.server.batches.requests_file import RULES, Echo


async def run(source: Path, log: Path) -> None:
    job = FileJob(source, log, rules=RULES, options={})
    await job.open(resume=True)
    await job.run(Echo(pause=0.001))
    job.close()


if __name__ == "__main__":
    file_job.SYNC_SECONDS = 0.005
    asyncio.run(run(*map(Path, sys.argv[1:])))
