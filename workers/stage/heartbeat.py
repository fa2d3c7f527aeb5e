"""A worker's heartbeat, to its engine core (`engine_core/executor/watch.py`).

A thread sends it, so that it continues however long a step takes: how long a step may take is the
engine core's to judge. (`workers/contract/supervision.py` has the other heartbeat, to the daemon.)
"""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

from workers.contract.messages import WorkerBeat
from workers.contract.supervision import BEAT_SECONDS
from workers.links.engine_link import EngineLink


@contextmanager
def beating(
    engine: EngineLink, stage: int, last_finished_step: Callable[[], int]
) -> Generator[None]:
    """Send heartbeats while the block runs. `engine` is a link that only the heartbeat uses;
    `last_finished_step` returns the newest step of which this stage has done its share."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_SECONDS):
            engine.send(WorkerBeat(stage, last_finished_step()))

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
