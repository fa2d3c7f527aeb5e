"""A worker's heartbeat, sent by a thread so that it continues however long a step takes."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

from workers.contract.messages import WorkerBeat
from workers.contract.supervision import BEAT_SECONDS
from workers.links.engine_link import EngineLink


@contextmanager
def beating(engine: EngineLink, stage: int, finished: Callable[[], int]) -> Generator[None]:
    """Send heartbeats while the block runs. `engine` is a link that only the heartbeat uses;
    `finished` returns the last step that this stage has computed."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_SECONDS):
            engine.send(WorkerBeat(stage, finished()))

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
