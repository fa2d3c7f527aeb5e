"""`python -P -m workers CONFIG.json [RESTARTS]`: one worker process.

RESTARTS is how many times its stages were started before. A `spare` has this word there, and gets
the number on standard input when it takes a worker's place. Until then it imports what that worker
had imported when it was ready.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import msgspec
import zmq

from workers.contract.config import WorkerConfig
from workers.contract.process import (
    exit_with_parent,
    finish_standard_error,
    line_from_parent,
    open_log,
)


def main() -> None:
    """Run the stage that the file named on the command line describes. Exits with code 1."""
    begun = time.monotonic()
    # Ctrl-C reaches the whole process group: the supervisor alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    file = Path(sys.argv[1])
    config = msgspec.json.decode(file.read_bytes(), type=WorkerConfig)
    execution, restarts = config.execution, sys.argv[2:]
    is_spare = restarts == ["spare"]
    if not is_spare:
        exit_with_parent()
    open_log(f"worker {config.stage} of {execution.engine_name}", execution.log_level)
    if execution.cores:  # before there are threads, which inherit it, and memory
        os.sched_setaffinity(0, execution.cores)
    # Seconds of imports, which must not come before the lines above.
    import torch  # noqa: PLC0415

    from workers.stage.worker import run_worker  # noqa: PLC0415

    imports = file.with_suffix(".imports")
    if is_spare:
        for name in imports.read_text().split():
            with suppress(Exception):  # some are made in memory
                import_module(name)
        restarts, begun = [line_from_parent()], time.monotonic()
        exit_with_parent()
    execution = execution.restarted(*restarts)
    torch.set_num_threads(execution.threads)
    config = msgspec.structs.replace(config, execution=execution)
    context = zmq.Context()
    # Held, with all that its traceback holds.
    _failure = run_worker(
        config, context, begun, lambda: imports.write_text("\n".join(sys.modules))
    )
    finish_standard_error()
    # No thread is joined, no process group destroyed, no memory freed: each may wait for a stage
    # that is gone.
    os._exit(1)


if __name__ == "__main__":
    main()
