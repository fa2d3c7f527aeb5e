"""A worker's heartbeat, to its engine core (`engine_core/executor/watch.py`).

A thread sends it, so that it continues however long a step takes: how long a step may take is the
engine core's to judge. (`workers/contract/process.py` has the other heartbeat, to the daemon.)
"""

import threading
import time
from collections.abc import Callable
from typing import NoReturn

from workers.contract.messages import WorkerBeat
from workers.contract.process import BEAT_SECONDS
from workers.links.engine_link import EngineLink


def start_heartbeat(engine: EngineLink, stage: int, last_finished_step: Callable[[], int]) -> None:
    """Send heartbeats until the process ends. `engine` is a link that only the heartbeat uses;
    `last_finished_step` returns the newest step of which this stage has done its share."""

    def beat() -> NoReturn:
        while True:
            time.sleep(BEAT_SECONDS)
            engine.send(WorkerBeat(stage, last_finished_step()))

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()
